// Times of a step's operations, summed by kind of operation and by unit.
#pragma once

#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/timeline.h"
#include "simulator/records/rows.h"

namespace fsdp {

[[nodiscard]] ActionKey action_key(const Operation&, const ModelGraph&);

// Longest first.
[[nodiscard]] std::vector<ActionTime> times_by_action(const Step&, const Timeline&, const ModelGraph&);

// In the plan's order; operations that belong to no unit (loss, batch, norm) last. A kernel belongs to the innermost
// unit around its module. Units without operations are left out.
[[nodiscard]] std::vector<UnitTime> times_by_unit(const Step&, const Timeline&, const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp
