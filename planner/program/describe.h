// What an operation works on, in words.
#pragma once

#include <cstdint>
#include <string>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"

namespace fsdp {

// "linear model.layers.3.mlp.gate_proj op 12 mb 0", "unit 4 (model.layers.3) mb 0", "mb 0". describe() puts the action
// before it.
[[nodiscard]] std::string unit_text(std::int32_t unit, const ShardingPlan&);  // "unit 4 (model.layers.3)"
[[nodiscard]] std::string describe_object(const Operation&, const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp
