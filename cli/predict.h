// From what the flags name to a job's programs, and the score that a search asks for.
#pragma once

#include "cli/options.h"
#include "planner/job.h"
#include "planner/search.h"
#include "simulator/predict.h"

namespace fsdp::cli {

// The plan has passed `check` against the setup's model. Throws InputError(setting("param_dtype"), ...) where it
// computes in bf16 on GPUs without units for that (before compute capability 8.0).
[[nodiscard]] Programs programs_of(const ShardingPlan&, const Setup&);
// Of unequal GPUs, where that was asked for (--jitter); else the step.
[[nodiscard]] Seconds mean_step(const Prediction&);
// With its cost, where the cluster has a price and the plan fits.
[[nodiscard]] Prediction priced(Prediction, const Setup&);
// A prediction without timeline and order; only as far as the plan fits, where it does not matter what is tight.
[[nodiscard]] Score score_plan(const ShardingPlan&, const Setup&, bool tight = true);
[[nodiscard]] StepTime time_plan(const ShardingPlan&, const Setup&);

}  // namespace fsdp::cli
