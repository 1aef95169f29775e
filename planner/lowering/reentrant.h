// Which checkpoints are reentrant, and what fsdp1's hooks hold beside them (docs/fsdp-order.md, A2.15).
#pragma once

#include <vector>

#include "models/graph.h"
#include "planner/lowering/tape/tape.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"
#include "planner/program.h"

namespace fsdp {

// Of a plan whose checkpoints are reentrant, or a model whose are (trl prepares one so). fsdp1's hook that frees a
// frozen unit lies on the leaves that its module is called with, and holds them.
[[nodiscard]] Reentrant reentrant_checkpoints(const ShardingPlan&, const ModelGraph&, const PlanIds&,
                                              const std::vector<UnitLayout>&);

}  // namespace fsdp
