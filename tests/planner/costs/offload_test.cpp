// What the CPU takes for offloaded shards: the optimizer's step and clipping, against what others measured.
#include <doctest/doctest.h>

#include "models/catalog.h"
#include "planner/lower.h"
#include "planner/optimizer.h"
#include "planner/search/plan_choices.h"
#include "tests/planner/costs/priced.h"
#include "tests/support/relative.h"

using namespace priced;

namespace {

// Nanoseconds of the host for an element that a rank holds, of all operations of one kind, without those that an
// operation of no bytes takes.
double per_element(const ModelGraph& model, const ShardingPlan& plan, const Implementation& implementation,
                   std::int64_t gpus, Action action) {
  const ClusterSpec cluster = h100(gpus);
  const Costs costs = default_costs(cluster);
  const Program program = lower(model, plan, implementation);
  const Demands demands = demands_of(program.steady_step, program, {model, plan, implementation, cluster, costs});
  double seconds = 0;
  for (std::size_t i = 0; i < demands.size(); ++i)
    if (program.steady_step.ops[i].action == action) seconds += (demands[i].host - costs.host_per_operation).count();
  return seconds * 1e9 / static_cast<double>(model.parameter_count()) * static_cast<double>(gpus);
}

ShardingPlan offloaded(const ModelGraph& model, std::int64_t gpus, int threads, Dialect dialect = Dialect::fsdp2) {
  PlanChoices choices;
  choices.dialect = dialect;
  choices.wrap = "block";
  choices.offload = true;
  choices.clip_norm = 1;
  choices.host_threads = threads;
  return plan_of(choices, model, {.ranks = gpus, .seq_len = 128});
}

}  // namespace

TEST_CASE("AdamW on offloaded shards takes what PyTorch's does on as many threads, fused and by its default") {
  const ModelGraph model = load_model("llama3-8b");
  const Implementation& fused = find_implementation("hf", false, "test");
  const Implementation usual = by_foreach(fused);
  for (const Dialect dialect : {Dialect::fsdp2, Dialect::fsdp1}) {
    const auto step = [&](const Implementation& i, std::int64_t gpus, int threads) {
      return per_element(model, offloaded(model, gpus, threads, dialect), i, gpus, Action::optimizer);
    };
    // One core of an EPYC took 0.56 to 1.1 ns an element, fused, and 1.7 to 6.3 by default (docs/costs.md).
    CHECK(step(fused, 8, 0) == relative(28 / 25.0));
    CHECK(step(usual, 8, 0) == relative(5.1 * 28 / 25.0));
    CHECK(step(usual, 8, 0) > 1.7);
    CHECK(step(usual, 8, 0) < 6.3);
    CHECK(step(fused, 8, 1) == step(fused, 8, 0));  // torchrun's default
    CHECK(step(fused, 4, 2) == relative(step(fused, 4, 0) / 2));
    // 12.8 s for 171e9 parameters with 30 threads on each of 8 ranks that are bound to their sockets (prime-rl).
    CHECK(step(fused, 8, 30) == relative(28 * 8 / 280.0));
    CHECK(step(fused, 8, 30) > 12.8e9 / 171e9 * 8);
    // Alone on its node a rank has all threads, and the node's memory to itself (fsdp1 offloads no single shard).
    if (dialect == Dialect::fsdp2) CHECK(step(fused, 1, 0) == relative(28 / 280.0));
  }
}

TEST_CASE("numbers of 16 bits take a thread as long as those of 32, and a node's memory half as long") {
  const ModelGraph model = load_model("llama3-8b");
  const Implementation& fused = find_implementation("hf", false, "test");
  const auto step = [&](int threads) {
    ShardingPlan plan = offloaded(model, 8, threads);
    plan.master_dtype = plan.reduce_dtype = DType::bf16;
    return per_element(model, plan, fused, 8, Action::optimizer);
  };
  CHECK(step(1) == relative(28 / 25.0));
  CHECK(step(26) == relative(14 * 8 / 280.0));
  CHECK(step(26) <
        4e9 / (405.85e9 / 64));  // about 4 s with 26 threads on each of 8 ranks that are not bound (row 4101)
}

TEST_CASE("clipping reads offloaded gradients for their norm, and reads and writes them") {
  const ModelGraph model = load_model("llama3-8b");
  const Implementation& fused = find_implementation("hf", false, "test");
  for (const Dialect dialect : {Dialect::fsdp2, Dialect::fsdp1}) {
    const ShardingPlan plan = offloaded(model, 8, 0, dialect);
    CHECK(per_element(model, plan, fused, 8, Action::clip_local_norm) == relative(4 / 25.0));
    CHECK(per_element(model, plan, fused, 8, Action::clip_scale) == relative(8 / 25.0));
  }
}

TEST_CASE("on CPU ranks the optimizer's rate is measured as a whole, however many passes it takes") {
  Setup s;
  s.cluster = host_cluster();
  s.costs = host_costs();
  s.plan.offload = true;
  s.plan.optimizer.kind = OptimizerKind::sgd;
  s.plan.optimizer.momentum = 0.9;
  const auto seconds = [&](const Implementation& i) {
    const Program program = lower(s.model, s.plan, i);
    const Demands demands = demands_of(program.steady_step, program, {s.model, s.plan, i, s.cluster, s.costs});
    double sum = 0;
    for (std::size_t k = 0; k < demands.size(); ++k)
      if (program.steady_step.ops[k].action == Action::optimizer)
        sum += (demands[k].host - s.costs.host_per_operation).count();
    return sum;
  };
  Implementation loop = s.impl;
  loop.optimizer_form = OptimizerForm::foreach;
  CHECK(seconds(s.impl) > 0);
  CHECK(seconds(loop) == relative(seconds(s.impl)));
}
