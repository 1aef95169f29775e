// Extents of the buffers that actions work on.
#pragma once

#include <cstdint>

#include "executor/backend.h"
#include "models/dtype.h"
#include "planner/layout.h"
#include "planner/layout/gradients.h"
#include "planner/plan.h"
#include "planner/program.h"

namespace fsdp {

// Throws InternalError unless the buffer holds exactly `elements` elements of `type`. `what`: the buffer, for the
// message.
void expect_elements(BufferView, std::int64_t elements, DType type, const char* what);
// How a unit's sharded gradient lies in its buffer: fsdp1 keeps the shard's own layout, ddp and fsdp2 that of the
// trained parameters, host memory those without padding.
[[nodiscard]] GradientPlaces gradient_places(const ShardingPlan&, const Buffer&);

}  // namespace fsdp
