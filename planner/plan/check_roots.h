// Rules of a plan without a unit of the whole model: its outermost units are roots.
#pragma once

#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"

namespace fsdp {

// As plan/check does: throws InputError for the first rule that is broken.
void check_roots(const ShardingPlan&, std::string_view where);
void check_roots(const ShardingPlan&, const PlanIds&, const ModelGraph&, const std::vector<UnitLayout>&,
                 std::string_view where);

}  // namespace fsdp
