// Extents of the buffers that actions work on.
#pragma once

#include <cstdint>

#include "executor/backend.h"
#include "models/dtype.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

// Throws InternalError unless the buffer holds exactly `elements` elements of `type`. `what`: the buffer, for the
// message.
void expect_elements(BufferView, std::int64_t elements, DType type, const char* what);
// How many elements of a unit are reduced: ddp reduces the padded shards of all parameters, the others of the trained.
[[nodiscard]] std::int64_t reduced_elements(const UnitLayout&, const ShardingPlan&);

}  // namespace fsdp
