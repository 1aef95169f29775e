// gpt-oss in torchtitan, as of April to August 2026 (torchtitan/models/gpt_oss): FlexAttention whose result is scaled
// by what a head's sink leaves of the softmax, experts with biases and a limited SwiGLU, rotary positions in fp32.
#pragma once

#include "models/implementation.h"

namespace fsdp::torchtitan {

OpFacts flex_attention_with_sinks(const Op&, const Workload&);
OpFacts flex_attention_with_sinks_compiled(const Op&, const Workload&);
// What other models have, too: without biases, and without limits.
OpFacts expert_linear(const Op&, const Workload&);
OpFacts expert_linear_compiled(const Op&, const Workload&);
OpFacts swiglu(const Op&, const Workload&);
OpFacts swiglu_compiled(const Op&, const Workload&);
OpFacts cos_sin_rotary(const Op&, const Workload&);

}  // namespace fsdp::torchtitan
