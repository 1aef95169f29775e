// Costs moved to measured steps: what is measured here is a machine of other costs, so that the truth is known.
#include "simulator/published/own/own_runs.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/catalog.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "simulator/analysis/times.h"
#include "simulator/engine/engine.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

// A plan measured on `machine`, with times by action or without. The step waits for the slowest GPU; rank 0, whose
// actions are measured, is one like most.
OwnRun measured(const std::string& name, std::int64_t seq_len, std::int64_t micro_batch, Costs machine,
                bool by_action) {
  const ClusterSpec cluster = load_cluster("dgx-h100", 8);
  ModelGraph model = load_model("llama3-8b", seq_len);
  ShardingPlan plan = naive_plan(model, PlanOptions{.ranks = 8, .seq_len = seq_len, .micro_batches = {micro_batch}});
  const Implementation& titan = find_implementation("torchtitan", false, "test");
  OwnRun run = own_run(name, std::move(model), std::move(plan), titan, cluster, 1, {});
  const Step& step = run.program.steady_step;
  const auto timeline = [&] {
    return simulate(step, demands_of(step, run.program, {run.model, run.plan, titan, run.cluster, machine}));
  };
  run.measured_step_s = timeline().duration;
  machine.gpu_spread = 0;
  if (by_action) run.measured_by_action = times_by_action(step, timeline(), run.model);
  return run;
}

const OwnConstant* constant(const OwnFit& fit, std::string_view name) {
  for (const OwnConstant& c : fit.constants)
    if (c.name == name) return &c;
  return nullptr;
}

}  // namespace

TEST_CASE("steps of another machine move the costs to it, and the error on a plan that was not seen falls") {
  const Costs base = default_costs(load_cluster("dgx-h100", 8));
  Costs machine = base;
  machine.matmul_efficiency *= 0.85;
  machine.attention_forward_efficiency *= 0.8, machine.attention_backward_efficiency *= 0.8;
  const std::vector<OwnRun> runs = {measured("a", 2048, 4, machine, true), measured("b", 8192, 1, machine, true),
                                    measured("c", 8192, 2, machine, true), measured("c again", 8192, 2, machine, true)};
  const OwnFit fit = fit_own_runs(runs, base, "test");
  REQUIRE(fit.plans.size() == 3);
  CHECK(fit.plans[2].measurements == 2);
  for (const OwnPlan& p : fit.plans) {
    CAPTURE(p.name);
    CHECK(p.before < -0.05);
    CHECK(std::abs(p.after) < 0.02);
    REQUIRE(p.unseen);
    CHECK(std::abs(*p.unseen) < std::abs(p.before) / 2);
  }
  REQUIRE(constant(fit, "matmul_efficiency") != nullptr);
  CHECK(constant(fit, "matmul_efficiency")->factor == relative(0.85).epsilon(0.06));
  CHECK(fit.costs.matmul_efficiency < base.matmul_efficiency);
  CHECK(fit.costs.source == "test");
  CHECK(fit.costs.platform == base.platform);
  // What none of them depends on stays: one node has no fabric.
  CHECK(constant(fit, "fabric_efficiency") == nullptr);
  CHECK(fit.costs.fabric_efficiency == base.fabric_efficiency);
}

TEST_CASE("products that were measured in another dtype than the plan's move by the efficiency that prices them") {
  Costs base = default_costs(load_cluster("dgx-h100", 8));
  base.kernels.assign(2 * kOpKinds, {});
  for (auto& curve : base.matmul_curve) curve = {{1e9, 1e-4}, {1e12, 1e-1}};
  base.measured_dtype = DType::f32;
  Costs machine = base;
  machine.matmul_efficiency *= 0.8;
  const std::vector<OwnRun> runs = {measured("a", 2048, 4, machine, true), measured("b", 8192, 1, machine, true)};
  REQUIRE(runs[0].plan.param_dtype == DType::bf16);
  const OwnFit fit = fit_own_runs(runs, base, "test");
  REQUIRE(constant(fit, "matmul_efficiency") != nullptr);
  CHECK(constant(fit, "matmul_efficiency")->factor == relative(0.8).epsilon(0.06));
  for (const OwnPlan& p : fit.plans) CHECK(std::abs(p.after) < 0.03);
}

TEST_CASE("one plan, its step time alone: the costs move, and nothing is claimed of others") {
  const Costs base = default_costs(load_cluster("dgx-h100", 8));
  Costs machine = base;
  machine.matmul_efficiency *= 0.9;
  const std::vector<OwnRun> runs = {measured("a", 2048, 4, machine, false)};
  const OwnFit fit = fit_own_runs(runs, base, "test");
  REQUIRE(fit.plans.size() == 1);
  CHECK_FALSE(fit.plans[0].unseen);
  CHECK(std::abs(fit.plans[0].after) < std::abs(fit.plans[0].before) / 2);
}

TEST_CASE("costs that agree with what was measured stay as they are") {
  const Costs base = default_costs(load_cluster("dgx-h100", 8));
  const std::vector<OwnRun> runs = {measured("a", 2048, 4, base, true), measured("b", 8192, 1, base, true)};
  const OwnFit fit = fit_own_runs(runs, base, base.source);
  CHECK(fit.constants.empty());
  for (const OwnPlan& p : fit.plans) CHECK(std::abs(p.after) < 1e-3);
}

TEST_CASE("a machine beyond what is physical is said to be") {
  const Costs base = default_costs(load_cluster("dgx-h100", 8));
  std::vector<OwnRun> runs = {measured("a", 2048, 4, base, false), measured("b", 8192, 1, base, false)};
  for (OwnRun& run : runs) run.measured_step_s *= 6;
  const OwnFit fit = fit_own_runs(runs, base, "test");
  for (const OwnPlan& q : fit.plans) MESSAGE(q.before << " " << q.after);
  bool at_bound = false;
  for (const OwnConstant& c : fit.constants) at_bound = at_bound || c.at_bound;
  CHECK(at_bound);
  CHECK(fit.plans[0].after < -0.1);
}

TEST_CASE("a machine that is far from the costs is reached, not taken for noise") {
  const Costs base = default_costs(load_cluster("dgx-h100", 8));
  Costs machine = base;
  machine.matmul_efficiency *= 0.6, machine.memory_efficiency *= 0.6;
  machine.attention_forward_efficiency *= 0.6, machine.attention_backward_efficiency *= 0.6;
  const std::vector<OwnRun> runs = {measured("a", 2048, 4, machine, false), measured("b", 8192, 1, machine, false)};
  const OwnFit fit = fit_own_runs(runs, base, "test");
  for (const OwnPlan& p : fit.plans) {
    CHECK(p.before < -0.3);
    CHECK(std::abs(p.after) < 0.05);
  }
}
