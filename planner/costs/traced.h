// Time of the kernels that PyTorch ran for an op (models/graph/trace.h): matrix products and attention by their shape,
// all others by the bytes that they move.
#pragma once

#include "planner/costs/kernels.h"

namespace fsdp {

[[nodiscard]] Demand traced_demand(const Op&, Direction, std::int64_t sequences, const CostContext&);

}  // namespace fsdp
