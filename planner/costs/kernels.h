// Time of the GPU or CPU kernels of one typed op, in one direction.
#pragma once

#include "models/graph.h"
#include "models/graph/gradients.h"
#include "planner/costs.h"

namespace fsdp {

enum class Direction : std::uint8_t { forward, backward };

// What of an op runs: so many equal parts of the tokens are one each, and of a linear layer's products these.
struct KernelPart {
  std::int64_t parts = 1;
  Products products = Products::all;
};

// Demand of an op on `sequences` sequences, with the host's time to issue it and its flops. Recomputing is a forward.
[[nodiscard]] Demand kernel_demand(const Op&, Direction, std::int64_t sequences, const CostContext&, KernelPart = {});
// ... of what the training loop computes of a loss's inputs (OpFacts::after_backward).
[[nodiscard]] Demand metrics_demand(const Op& loss, std::int64_t sequences, const CostContext&);

}  // namespace fsdp
