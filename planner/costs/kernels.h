// Time of one typed op in one direction.
#pragma once

#include "models/graph.h"
#include "planner/costs.h"

namespace fsdp {

enum class Direction : std::uint8_t { forward, backward };

// Demand of an op's kernels on `sequences` sequences, host issue time and flops included. Recomputing is a forward.
[[nodiscard]] Demand kernel_demand(const Op&, Direction, std::int64_t sequences, const CostContext&);

}  // namespace fsdp
