// How long one plan takes from lowering to reserved memory: lowering, pricing and timing a steady step, and replaying
// init, the first step and three steady steps through the allocator model.
#include <benchmark/benchmark.h>

#include "models/catalog.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"
#include "simulator/allocator/replay.h"
#include "simulator/engine/engine.h"

namespace {

using namespace fsdp;

struct Case {
  ModelGraph model;
  ClusterSpec cluster;
  Costs costs;
  ShardingPlan plan;
  const Implementation& implementation = find_implementation("torchtitan", false, "bench");

  Case(const char* name, std::int64_t gpus, std::int64_t replicate, std::size_t micro_batches)
      : model(load_model(name, 8192)), cluster(load_cluster("dgx-h100", gpus)), costs(default_costs(cluster)) {
    PlanOptions options;
    options.ranks = gpus;
    options.replicate = replicate;
    options.seq_len = 8192;
    plan = naive_plan(model, options);
    plan.micro_batches.assign(micro_batches, 1);
  }
  [[nodiscard]] CostContext context() const { return {model, plan, implementation, cluster, costs}; }
};

Case llama3_8b() { return {"llama3-8b", 64, 1, 1}; }
Case llama3_70b() { return {"llama3-70b", 1024, 1, 1}; }
Case llama3_405b() { return {"llama3.1-405b", 4096, 8, 4}; }  // HSDP, 126 blocks

void whole(benchmark::State& state, const Case& c) {
  std::size_t ops = 0;
  for (auto _ : state) {
    const Program program = lower(c.model, c.plan, c.implementation);
    const Demands demands = demands_of(program.steady_step, program, c.context());
    const Timeline timeline = simulate(program.steady_step, demands);
    ReplayOptions options;
    options.settings.expandable_segments = c.implementation.memory == MemorySource::caching_expandable;
    options.steady_step = &timeline;
    benchmark::DoNotOptimize(replay_allocator(program, options).peak_reserved);
    ops = program.steady_step.ops.size();
  }
  state.counters["ops"] = static_cast<double>(ops);
}

void replay_only(benchmark::State& state, const Case& c, bool expandable) {
  const Program program = lower(c.model, c.plan, c.implementation);
  const Timeline timeline = simulate(program.steady_step, demands_of(program.steady_step, program, c.context()));
  ReplayOptions options;
  options.settings.expandable_segments = expandable;
  options.steady_step = &timeline;
  AllocatorPrediction p;
  for (auto _ : state) p = replay_allocator(program, options);
  state.counters["allocated_GiB"] = static_cast<double>(p.peak_allocated) / (1 << 30);
  state.counters["reserved_GiB"] = static_cast<double>(p.peak_reserved) / (1 << 30);
  state.counters["mallocs_a_step"] = static_cast<double>(program.steady_step.allocs.size());
  state.counters["steady_steps"] = p.steady_steps_replayed;
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::pair<const char*, Case> cases[] = {
      {"llama3-8b", llama3_8b()}, {"llama3-70b", llama3_70b()}, {"llama3.1-405b", llama3_405b()}};
  for (const auto& [name, c] : cases) {
    const std::string n = name;
    benchmark::RegisterBenchmark(("lower_simulate_replay " + n).c_str(), whole, c)->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("replay " + n).c_str(), replay_only, c, false)->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("replay_expandable " + n).c_str(), replay_only, c, true)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
