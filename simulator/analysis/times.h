// Times of a step's operations, summed by kind of operation and by unit.
#pragma once

#include <string>
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

// By operation of the step: the unit that it belongs to. A kernel belongs to the innermost unit around its module.
// kNone: none (loss, batch, norm).
[[nodiscard]] std::vector<std::int32_t> units_of_operations(const Step&, const ShardingPlan&, const ModelGraph&);
// "root", "model.layers.1", "a and 2 more"; "model": the inner one of two units of the whole model.
[[nodiscard]] std::string modules_text(const ShardingPlan&, std::int32_t unit);

// In the plan's order; operations that belong to no unit (loss, batch, norm) last. Units without
// operations are left out.
[[nodiscard]] std::vector<UnitTime> times_by_unit(const Step&, const Timeline&, const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp
