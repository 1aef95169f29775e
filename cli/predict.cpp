#include "cli/predict.h"

#include "planner/lower.h"

namespace fsdp::cli {

Prediction predict_program(const Program& program, const ShardingPlan& plan, const Setup& setup) {
  return predict(program, CostContext{setup.model, plan, *setup.implementation, setup.cluster, setup.costs},
                 setup.options);
}

Prediction predict_plan(const ShardingPlan& plan, const Setup& setup) {
  return predict_program(lower(setup.model, plan, *setup.implementation), plan, setup);
}

Score score_plan(const ShardingPlan& plan, const Setup& setup) {
  PredictOptions options = setup.options;
  options.keep_timeline = false;
  const Program program = lower(setup.model, plan, *setup.implementation);
  const Prediction p =
      predict(program, CostContext{setup.model, plan, *setup.implementation, setup.cluster, setup.costs}, options);
  return Score{p.step_time, p.peak_total, p.verdict, p.where};
}

}  // namespace fsdp::cli
