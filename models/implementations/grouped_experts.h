// Mixtures of experts in torchtitan, of each time: choices are sorted by expert, their rows gathered, multiplied in one
// grouped launch per matrix, put back and added up.
#pragma once

#include "models/implementation.h"

namespace fsdp::torchtitan {

// August to November 2025, and prime-rl's own models of January 2026: rows by aten::gather, padded by a second gather,
// weighted in fp32, added to zeros.
OpFacts moe_route(const Op&, const Workload&);
OpFacts gathered_moe_dispatch(const Op&, const Workload&);
OpFacts padded_moe_combine(const Op&, const Workload&);

// From 21 November 2025 on (pull request 1974): rows by aten::index, padded as before; put back in the order of tokens
// and multiplied by the weights in one batched product.
OpFacts indexed_moe_dispatch(const Op&, const Workload&);
OpFacts batched_moe_combine(const Op&, const Workload&);

// From April 2026 on (pull requests 2774, 2775): not padded, weighted in fp32 and added to zeros. Compiled with the
// block.
OpFacts moe_dispatch(const Op&, const Workload&);
OpFacts moe_combine(const Op&, const Workload&);
OpFacts moe_route_compiled(const Op&, const Workload&);
OpFacts moe_dispatch_compiled(const Op&, const Workload&);
OpFacts moe_combine_compiled(const Op&, const Workload&);

// prime-rl's, with adapters of experts: as August 2025's, but not padded.
OpFacts adapted_moe_dispatch(const Op&, const Workload&);
OpFacts adapted_moe_combine(const Op&, const Workload&);

}  // namespace fsdp::torchtitan
