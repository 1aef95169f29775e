// Lower and predict, the two calls that several commands make in a row.
#pragma once

#include "cli/options.h"
#include "planner/program.h"
#include "planner/search.h"
#include "simulator/records/prediction.h"

namespace fsdp::cli {

[[nodiscard]] Prediction predict_plan(const ShardingPlan&, const Setup&);
[[nodiscard]] Prediction predict_program(const Program&, const ShardingPlan&, const Setup&);
// Without timeline and order: what a search asks for.
[[nodiscard]] Score score_plan(const ShardingPlan&, const Setup&);

}  // namespace fsdp::cli
