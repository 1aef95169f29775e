// Time of the GPU or CPU kernels of one typed op, in one direction.
#pragma once

#include "models/graph.h"
#include "models/graph/gradients.h"
#include "planner/costs.h"

namespace fsdp {

enum class Direction : std::uint8_t { forward, backward };

// Demand of an op on `sequences` sequences, with the host's time to issue it and its flops. Recomputing is a forward.
// `part`: of an output layer or a loss that runs one of the plan's loss_chunks at a time.
[[nodiscard]] Demand kernel_demand(const Op&, Direction, std::int64_t sequences, const CostContext&, bool part = false);

}  // namespace fsdp
