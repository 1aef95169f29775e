// Rules of inputs of checkpointed modules that wait in host memory (ShardingPlan::offload_activations).
#pragma once

#include <string_view>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"

namespace fsdp {

void check_activations(const ShardingPlan&, std::string_view where);  // no model needed
void check_activations(const ShardingPlan&, const PlanIds&, const ModelGraph&, std::string_view where);

}  // namespace fsdp
