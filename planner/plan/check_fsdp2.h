// Rules of a plan that come from its dialect being fsdp2, or not. Called by `check`; each throws InputError(where:
// field, ...).
#pragma once

#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"

namespace fsdp {

// Refuses what fully_shard of the plan's PyTorch release does not have or cannot do.
void check_fsdp2(const ShardingPlan&, std::string_view where);
void check_fsdp2(const ShardingPlan&, const ModelGraph&, const std::vector<UnitLayout>&, std::string_view where);

// Units with a mesh of their own, under any dialect (only fsdp2 has them). No model needed.
void check_own_mesh(const ShardingPlan&, std::string_view where);

// Refuses what a plan of another dialect than fsdp2 and fsdp1 cannot have.
void refuse_sharding_choices(const ShardingPlan&, std::string_view where);

// Parameters that the plan ignores, under any dialect.
void check_ignored(const ShardingPlan&, const ModelGraph&, const std::vector<UnitLayout>&, std::string_view where);

// Inputs of checkpointed modules that wait in host memory (ShardingPlan::offload_activations), under any dialect:
// without a model, and against it.
void check_activations(const ShardingPlan&, std::string_view where);
void check_activations(const ShardingPlan&, const PlanIds&, const ModelGraph&, std::string_view where);

}  // namespace fsdp
