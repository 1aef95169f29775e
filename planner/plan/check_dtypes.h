// Rules of units that have a mixed precision of their own.
#pragma once

#include <string_view>

#include "planner/plan.h"

namespace fsdp {

// What needs no model; what the ops of one say is planner/tensor/unit_dtypes.h's.
void check_dtypes(const ShardingPlan&, std::string_view where);

}  // namespace fsdp
