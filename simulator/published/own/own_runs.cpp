#include "simulator/published/own/own_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "planner/costs/fitted.h"
#include "planner/lower.h"
#include "planner/tensor/local_model.h"
#include "simulator/analysis/times.h"
#include "simulator/engine/engine.h"
#include "simulator/published/fit.h"

namespace fsdp {
namespace {

constexpr double kCalibratedWidth = 0.10;  // two calibrations of one quiet machine differ by a few per cent
constexpr double kCalibratedMost = 4;      // and by this factor where others use it
constexpr double kActionWeight = 1.0 / 3;  // a sum of times by action beside a step time
constexpr double kActionShare = 0.05;      // of the step, below which a sum is noise
constexpr double kStepNoise = 0.02, kUnit = 4;
constexpr double kMoved = 0.005;

void slower(KernelRate& rate, double factor) {
  rate.overhead = rate.overhead * factor;
  rate.flops_rate = rate.flops_rate * (1 / factor);
  rate.byte_rate = rate.byte_rate * (1 / factor);
}
void slower(std::vector<CurvePoint>& curve, double factor) {
  for (CurvePoint& p : curve) p.seconds *= factor;
}

void slower_matmuls(Costs& c, double factor) {
  for (auto& curve : c.matmul_curve) slower(curve, factor);
  for (auto& rate : c.matmul_beyond_cube)
    if (rate) *rate = *rate * (1 / factor);
}
void slower_kernels(Costs& c, double factor) {
  for (KernelRate& rate : c.kernels) slower(rate, factor);
}
void slower_traffic(Costs& c, double factor) {
  if (c.kernels.empty()) return;  // rates of the datasheet move with memory_efficiency
  for (KernelRate* rate : {&c.copy, &c.cast, &c.optimizer, &c.norm}) slower(*rate, factor);
}
void slower_collectives(Costs& c, double factor) {
  for (auto* curve : {&c.all_gather, &c.reduce_scatter, &c.all_reduce}) slower(*curve, factor);
  for (CollectiveCurve& curve : c.collective_curves) slower(curve.points, factor);
}
void slower_threads(Costs& c, double factor) {
  if (!c.threads) return;
  HostThreads& t = *c.threads;
  for (Seconds* s : {&t.wake, &t.wake_beside, &t.collective_beside, &t.skew, &t.skew_most}) *s = *s * factor;
}

// What may move, by a factor.
struct Knob {
  std::string name;
  double lower = 0, upper = 0, width = 0;
  std::function<void(Costs&, double)> turn;
};

using Runs = std::vector<const OwnRun*>;

// Products and attention that were measured in another dtype than a run's are priced by the datasheet's efficiencies.
bool other_dtype(const Costs& base, const Runs& runs) {
  const auto other = [&](const OwnRun* r) { return !r->cluster.host && r->plan.param_dtype != *base.measured_dtype; };
  return base.measured_dtype && std::any_of(runs.begin(), runs.end(), other);
}

std::vector<Knob> knobs_of(const Costs& base, const Runs& runs) {
  std::vector<Knob> knobs;
  for (const CostParameter& p : cost_parameters()) {
    const double start = value_of(base, p);
    const bool of_products = p.name.starts_with("matmul_") || p.name.starts_with("attention_");
    const bool of_kernels = of_products || p.name.starts_with("memory_");
    const bool measured = !base.kernels.empty() && !(of_products && other_dtype(base, runs));
    if (!(start > 0) || (of_kernels && measured)) continue;  // measured kernels have factors of their own
    knobs.push_back({std::string(p.name), std::min(1.0, p.lower / start), std::max(1.0, p.upper / start),
                     p.platform_width, [&p, start](Costs& c, double factor) { set_value(c, p, start * factor); }});
  }
  using Turn = void (*)(Costs&, double);
  for (const auto& [name, turn] :
       std::initializer_list<std::pair<const char*, Turn>>{{"matrix products, measured", slower_matmuls},
                                                           {"other kernels, measured", slower_kernels},
                                                           {"copies and the optimizer, measured", slower_traffic},
                                                           {"collectives, measured", slower_collectives},
                                                           {"threads that are woken, measured", slower_threads}})
    knobs.push_back({name, 1 / kCalibratedMost, kCalibratedMost, kCalibratedWidth, turn});
  return knobs;
}

// Sums of times that are a rank's own: collectives also wait for others.
constexpr int kSums = 3;
int sum_of(Action a) {
  switch (a) {
    case Action::forward:
    case Action::recompute: return 0;
    case Action::backward: return 1;
    case Action::optimizer: return 2;
    default: return -1;
  }
}
std::array<double, kSums> sums(const std::vector<ActionTime>& times) {
  std::array<double, kSums> out{};
  for (const ActionTime& t : times)
    if (const int s = sum_of(t.what.action); s >= 0) out[static_cast<std::size_t>(s)] += t.seconds;
  return out;
}

struct Predicted {
  double step_s = 0;
  std::array<double, kSums> parts{};
};
// The step of a job, which waits for the slowest of its GPUs; the parts as rank 0 measures them, a GPU like most.
Predicted predicted(const OwnRun& run, Costs costs) {
  const Step& step = run.program.steady_step;
  const auto timeline = [&] {
    return simulate(step,
                    demands_of(step, run.program, {run.model, run.plan, *run.implementation, run.cluster, costs}));
  };
  const double step_s = timeline().duration;
  if (run.measured_by_action.empty()) return {step_s, {}};
  costs.gpu_spread = 0;
  return {step_s, sums(times_by_action(step, timeline(), run.model))};
}

class OwnProblem {
 public:
  OwnProblem(Runs runs, const Costs& base) : runs_(std::move(runs)), base_(base), knobs_(knobs_of(base, runs_)) {
    for (const OwnRun* run : runs_) {
      const auto parts = sums(run->measured_by_action);
      std::vector<int> used;
      for (int s = 0; s < kSums; ++s)
        if (parts[static_cast<std::size_t>(s)] >= kActionShare * run->measured_step_s) used.push_back(s);
      parts_.push_back(std::move(used));
    }
  }

  [[nodiscard]] Costs costs(std::span<const double> factors) const {
    Costs c = base_;
    for (std::size_t k = 0; k < knobs_.size(); ++k)
      if (factors[k] != 1) knobs_[k].turn(c, factors[k]);
    return c;
  }

  // A fit to many rows takes those that are far off for noisy ones. A user's few steps are no noisier than steps are:
  // the spread is given (kUnit, which nothing exceeds), and a weight makes it the noise of a step.
  [[nodiscard]] FitResult solve() const {
    constexpr double kWeight = (kUnit / kStepNoise) * (kUnit / kStepNoise);
    FitProblem p;
    FitBlock block;
    for (std::size_t k = 0; k < knobs_.size(); ++k) {
      const Knob& knob = knobs_[k];
      p.variables.push_back({knob.name, 1, knob.lower, knob.upper});
      p.priors.push_back({static_cast<int>(k), std::nullopt, 1, knob.width});
      block.variables.push_back(static_cast<int>(k));
    }
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      block.weights.push_back(kWeight);
      block.weights.insert(block.weights.end(), parts_[i].size(), kWeight * kActionWeight);
    }
    block.rows = block.weights.size();
    block.residuals = [this](std::span<const double> factors) { return residuals(costs(factors)); };
    p.blocks.push_back(std::move(block));
    return fit(p, {.noise = kUnit, .tolerance = 1e-3});
  }

  [[nodiscard]] const std::vector<Knob>& knobs() const { return knobs_; }

 private:
  [[nodiscard]] std::vector<double> residuals(const Costs& costs) const {
    std::vector<double> out;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const OwnRun& run = *runs_[i];
      const Predicted now = predicted(run, costs);
      const auto measured = sums(run.measured_by_action);
      out.push_back(std::log(now.step_s / run.measured_step_s));
      for (const int s : parts_[i]) {
        const auto part = static_cast<std::size_t>(s);
        out.push_back(now.parts[part] > 0 ? std::log(now.parts[part] / measured[part]) : 0);
      }
    }
    return out;
  }

  Runs runs_;
  const Costs& base_;
  std::vector<Knob> knobs_;
  std::vector<std::vector<int>> parts_;  // by run: the sums that count
};

double mean_error(const Runs& runs, const Costs& costs) {
  double sum = 0;
  for (const OwnRun* run : runs) sum += predicted(*run, costs).step_s / run->measured_step_s - 1;
  return sum / static_cast<double>(runs.size());
}

}  // namespace

OwnRun own_run(std::string name, ModelGraph model, ShardingPlan plan, const Implementation& implementation,
               ClusterSpec cluster, double measured_step_s, std::vector<ActionTime> measured_by_action) {
  OwnRun run{std::move(name), std::move(model), std::move(plan), &implementation, std::move(cluster), {}, 0, {}};
  if (differs_from_local(run.model, run.plan, implementation))
    run.model = local_model(run.model, run.plan, implementation);
  run.program = lower(run.model, run.plan, implementation);
  run.measured_step_s = measured_step_s;
  run.measured_by_action = std::move(measured_by_action);
  return run;
}

OwnFit fit_own_runs(std::span<const OwnRun> runs, const Costs& base, const std::string& source) {
  Runs all;
  std::vector<std::string> order;  // of plans, as they first come
  std::map<std::string, Runs> by_plan;
  for (const OwnRun& run : runs) {
    all.push_back(&run);
    Runs& same = by_plan[run.model.digest() + run.plan.digest()];
    if (same.empty()) order.push_back(run.model.digest() + run.plan.digest());
    same.push_back(&run);
  }
  const OwnProblem problem(all, base);
  const FitResult result = problem.solve();
  OwnFit out;
  out.costs = problem.costs(result.values);
  out.costs.source = source;
  for (std::size_t k = 0; k < problem.knobs().size(); ++k)
    if (std::abs(std::log(result.values[k])) >= kMoved)
      out.constants.push_back(
          {problem.knobs()[k].name, result.values[k], result.standard_errors[k], result.at_bound[k]});
  for (const std::string& key : order) {
    const Runs& own = by_plan.at(key);
    OwnPlan plan{
        own.front()->name, static_cast<std::int64_t>(own.size()), 0, mean_error(own, base), mean_error(own, out.costs),
        std::nullopt};
    for (const OwnRun* run : own) plan.measured_step_s += run->measured_step_s / static_cast<double>(own.size());
    Runs others;
    for (const OwnRun* run : all)
      if (std::find(own.begin(), own.end(), run) == own.end()) others.push_back(run);
    if (!others.empty()) {
      const OwnProblem without(others, base);
      plan.unseen = mean_error(own, without.costs(without.solve().values));
    }
    out.plans.push_back(std::move(plan));
  }
  return out;
}

}  // namespace fsdp
