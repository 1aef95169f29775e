// Rules of what the training loop does beside calling the model (LoopPlan).
#pragma once

#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

// As plan/check does: throws InputError for the first rule that is broken.
void check_loop(const ShardingPlan&, std::string_view where);
void check_loop(const ShardingPlan&, const ModelGraph&, const std::vector<UnitLayout>&, std::string_view where);

}  // namespace fsdp
