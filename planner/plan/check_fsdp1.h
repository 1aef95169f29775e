// Rules of a plan that come from its dialect being fsdp1, or not. Called by `check`; each throws InputError(where:
// field, ...).
#pragma once

#include <string_view>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"

namespace fsdp {

// Refuses what FullyShardedDataParallel does not have or has in another form.
void check_fsdp1(const ShardingPlan&, std::string_view where);
// trained_outermost is of models with frozen and with trained parameters.
void check_trained(const ShardingPlan&, const ModelGraph&, std::string_view where);
void check_fsdp1(const ShardingPlan&, const PlanIds&, const ModelGraph&, std::string_view where);

// Refuses, in a plan of another dialect, what only FullyShardedDataParallel has.
void refuse_fsdp1_choices(const ShardingPlan&, std::string_view where);

}  // namespace fsdp
