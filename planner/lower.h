// Lowering: model + plan + implementation + rank -> Program. FSDP's order of work lives here and nowhere else.
//
//   Program p = lower(model, plan, find_implementation("native", false, ""), /*rank=*/0);
//
// Three stages, so that a dialect stays small: lowering/tape (forward, recompute, backward with tensor lifetimes; knows
// nothing of sharding), lowering/fsdp2, fsdp1 or ddp (hooks only), lowering/step (streams, events, buffers).
#pragma once

#include <cstdint>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"
#include "planner/program.h"

namespace fsdp {

// The model is split over the plan's tensor ranks (planner/tensor/split.h), where it has some, as `resolve` does it.
// `rank` in [0, plan.ranks()): decides only unpadded shard sizes; rank 0 bounds the memory of every rank (its chunks
// are never shorter; fsdp1: but for what lies between parameters, less than 16 bytes each). The plan has passed
// `check`.
[[nodiscard]] Program lower(const ModelGraph&, const ShardingPlan&, const PlanIds&, const Implementation&,
                            std::int64_t rank);
// The same for one program of a plan whose names are not resolved yet. Where several are needed, or a prediction or a
// run of them, start from a Job (planner/job.h).
[[nodiscard]] Program lower(const ModelGraph&, const ShardingPlan&, const Implementation&, std::int64_t rank = 0);

}  // namespace fsdp
