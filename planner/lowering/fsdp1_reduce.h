// The gradients of the `fsdp1` dialect, from what kernels write to what the optimizer reads (docs/fsdp-order.md A2.4,
// A2.8, A2.9).
//
// Parameters are views of the flat one, so autograd concatenates their gradients into a flat gradient when the last of
// them is there: for a moment both exist. The rest runs on the reduce_scatter stream (and all_reduce over replicas):
// cast to reduce_dtype, padding to W equal parts, division, reduction, division, cast to master_dtype, addition to the
// sharded gradient of earlier micro-batches.
#pragma once

#include <cstdint>

#include "planner/lowering/fsdp1_units.h"

namespace fsdp {

// The sharded gradient (without sharding: the gradient) that lives from step to step, not yet allocated.
[[nodiscard]] Buffer fsdp1_sharded_gradient(const Fsdp1Units&, std::int32_t unit);

// The place that a kernel making a parameter's gradient writes to, or adds to.
[[nodiscard]] Arg fsdp1_gradient(Fsdp1Units&, StepBuilder&, std::int32_t unit, std::size_t position,
                                 std::int32_t param);

// Concatenates the pieces. Of a unit that ran more than once in a forward each use gives a flat gradient, the last one
// first; autograd adds them up. The sum is added to what earlier micro-batches left unreduced; then it is in
// Fsdp1Unit::added. `first_use`: all uses have been through backward.
void fsdp1_flatten(Fsdp1Units&, StepBuilder&, std::int32_t unit, bool first_use);

// Reduces the flat gradient; the last micro-batch's result ends in the unit's sharded_gradient.
void fsdp1_reduce(Fsdp1Units&, StepBuilder&, std::int32_t unit, bool last_micro_batch);

}  // namespace fsdp
