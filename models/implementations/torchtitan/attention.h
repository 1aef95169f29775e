// torchtitan's attention where it is not scaled_dot_product_attention: PyTorch's FlexAttention, compiled, which
// DeepSeek models have had since August 2025 and all language models since 9 June 2026 (pull request 3571).
//
// Not counted: the masks of its blocks, made once for all layers, 16 bytes for every 128 x 128 tokens.
#pragma once

#include "models/implementation.h"

namespace fsdp::torchtitan {

OpFacts flex_attention(const Op&, const Workload&);
OpFacts flex_attention_compiled(const Op&, const Workload&);
// DeepSeek's rotary positions: of a part of each head of queries, and of what all heads' keys share.
OpFacts complex_rotary_of_parts(const Op&, const Workload&);
OpFacts complex_rotary_of_parts_compiled(const Op&, const Workload&);
// Latent attention by FlexAttention, everything else by scaled_dot_product_attention.
OpFacts sdpa_or_latent(const Op&, const Workload&);
OpFacts sdpa_or_latent_compiled(const Op&, const Workload&);

}  // namespace fsdp::torchtitan
