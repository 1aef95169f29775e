#include "cli/predict.h"

#include "simulator/doubt/doubt.h"

namespace fsdp::cli {

Programs programs_of(const ShardingPlan& plan, const Setup& setup) {
  return Programs(resolve(setup.model, plan, *setup.implementation, setup.cluster));
}

Seconds mean_step(const Prediction& p) {
  return p.step_time_distribution ? p.step_time_distribution->mean : p.step_time;
}

Prediction priced(Prediction p, const Setup& setup) {
  if (setup.cluster.price && p.verdict != Verdict::does_not_fit)
    p.cost =
        training_cost(*setup.cluster.price, p.ranks, static_cast<double>(p.tokens_per_step) / mean_step(p).count());
  return p;
}

Score score_plan(const ShardingPlan& plan, const Setup& setup) {
  PredictOptions options = setup.options;
  options.keep_timeline = false;
  Programs programs = programs_of(plan, setup);
  const Prediction p = predict(programs, setup.costs, options);
  Score score{p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
  const Bytes device = setup.cluster.gpu.usable_memory, reserve = setup.options.reserve;
  const Bytes left = device > reserve ? device - reserve : device;  // of what others take
  if (!setup.cluster.host)
    score.out_of_memory =
        chance_of_out_of_memory(doubt_table(), setup.implementation->name,
                                static_cast<double>((p.peak_allocated + p.fixed).count()),
                                static_cast<double>(left.count()));
  return score;
}

StepTime time_plan(const ShardingPlan& plan, const Setup& setup) {
  PredictOptions options = setup.options;
  options.keep_timeline = false;
  options.memory = false;
  Programs programs = programs_of(plan, setup);
  const Prediction p = predict(programs, setup.costs, options);
  return {p.step_time, p.where};
}

}  // namespace fsdp::cli
