#include "cli/predict.h"

#include <algorithm>

#include "models/graph/experts.h"
#include "models/input/error.h"
#include "planner/tensor/local_model.h"
#include "simulator/doubt/doubt.h"

namespace fsdp::cli {
namespace {

constexpr std::int64_t kFirstWithBf16 = 80;  // compute capability

// The 16-bit rate of older GPUs is that of fp16.
void check_dtype_of_gpu(const ShardingPlan& plan, const ClusterSpec& cluster) {
  if (cluster.host || cluster.gpu.compute_capability >= kFirstWithBf16) return;
  const bool in_bf16 =
      plan.param_dtype == DType::bf16 ||
      std::any_of(plan.units.begin(), plan.units.end(), [](const Unit& u) { return u.param_dtype == DType::bf16; });
  if (in_bf16)
    throw InputError(setting("param_dtype"),
                     "a " + cluster.gpu.name + " has no units for bf16, and how fast it computes in it is not known",
                     "plan with --param-dtype fp16, or use a GPU that has them");
}

// Of a plan that a search tries: from the model itself where ranks compute it whole, or as it was split.
Prediction predict_tried(const ShardingPlan& plan, const Setup& setup, PredictOptions options) {
  options.keep_timeline = false;
  if (differs_from_local(setup.model, plan, *setup.implementation)) {
    Programs programs = programs_of(plan, setup);
    return predict(programs, setup.costs, options);
  }
  check_dtype_of_gpu(plan, setup.cluster);
  const Program program = first_program(setup.model, plan, *setup.implementation, setup.cluster);
  return predict(program, {setup.model, plan, *setup.implementation, setup.cluster, setup.costs}, options);
}

}  // namespace

Programs programs_of(const ShardingPlan& plan, const Setup& setup) {
  check_dtype_of_gpu(plan, setup.cluster);
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

Score score_plan(const ShardingPlan& plan, const Setup& setup, bool tight) {
  PredictOptions options = setup.options;
  options.tight = tight;
  const Prediction p = predict_tried(plan, setup, options);
  Score score{p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
  const Bytes device = setup.cluster.gpu.usable_memory, reserve = setup.options.reserve;
  const Bytes left = device > reserve ? device - reserve : device;  // of what others take
  if (!setup.cluster.host)
    score.out_of_memory =
        chance_of_out_of_memory(doubt_table(), {setup.implementation->name, has_experts(setup.model)},
                                static_cast<double>((p.peak_allocated + p.fixed).count()),
                                static_cast<double>(left.count()));
  return score;
}

StepTime time_plan(const ShardingPlan& plan, const Setup& setup) {
  PredictOptions options = setup.options;
  options.memory = false;
  const Prediction p = predict_tried(plan, setup, options);
  return {p.step_time, p.where};
}

}  // namespace fsdp::cli
