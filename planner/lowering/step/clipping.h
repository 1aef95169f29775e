// Clipping of gradients by their norm, at the end of a step.
#pragma once

#include <cstdint>
#include <span>

#include "planner/lowering/step/step_builder.h"
#include "planner/plan.h"

namespace fsdp {

// One number, of the step.
[[nodiscard]] Buffer scalar_buffer();

// Local squared norm, sum over the shard group (replicas are identical) and over tensor ranks, scale. Buffers:
// `gradients`, and `own`, those of units with a mesh of their own, whose norm is summed first and over their own shard
// groups (A1.16). Those in host memory are read and scaled by the host; between the two it waits for the sums.
void clip_gradients(StepBuilder&, const ShardingPlan&, std::span<const std::int32_t> gradients,
                    std::span<const std::int32_t> own, std::int16_t micro_batch);

}  // namespace fsdp
