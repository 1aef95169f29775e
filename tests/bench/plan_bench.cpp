// How long thinking takes: lowering and predicting llama3-70b (op level, no folding) at growing GPU counts, with the
// most heap held at once; the same of models that are split over 8 tensor ranks, of one micro-batch and of 16; and a
// whole search for llama3-8b on 64 GPUs.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

#include "models/catalog.h"
#include "models/host.h"
#include "planner/job.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/search.h"
#include "planner/tensor/local_model.h"
#include "planner/wrap.h"
#include "simulator/engine/engine.h"
#include "simulator/engine/memory.h"
#include "simulator/predict.h"
#include "simulator/records/prediction.h"

namespace {

std::atomic<std::int64_t> live{0}, most{0};

void* counted(std::size_t size) {
  void* p = std::malloc(size);
  if (p == nullptr) throw std::bad_alloc();
  const std::int64_t now = live += static_cast<std::int64_t>(malloc_usable_size(p));
  if (now > most) most = now;
  return p;
}

void uncounted(void* p) noexcept {
  live -= static_cast<std::int64_t>(malloc_usable_size(p));
  std::free(p);
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void operator delete(void* p) noexcept { uncounted(p); }
void operator delete(void* p, std::size_t) noexcept { uncounted(p); }

namespace {

using namespace fsdp;

struct Case {
  ModelGraph model;
  ClusterSpec cluster;
  Costs costs;
  ShardingPlan plan;
  const Implementation& implementation = find_implementation("torchtitan", false, "bench");

  Case(const char* name, std::int64_t gpus, std::int64_t seq_len, std::int64_t tensor = 1,
       std::size_t micro_batches = 1)
      : model(load_model(name, seq_len)), cluster(load_cluster("dgx-h100", gpus)), costs(default_costs(cluster)) {
    PlanOptions options;
    options.ranks = gpus;
    options.seq_len = seq_len;
    options.tensor = tensor;
    options.micro_batches.assign(micro_batches, 1);
    plan = naive_plan(model, options);
    model = local_model(model, plan);
  }
  [[nodiscard]] CostContext context() const { return {model, plan, implementation, cluster, costs}; }
};

void report_heap(benchmark::State& state, std::int64_t before) {
  state.counters["most_heap_MiB"] = static_cast<double>(most - before) / (1024.0 * 1024.0);
}

// Lower, price, time and replay memory: everything between a plan and its score.
void lower_and_simulate(benchmark::State& state, const Case& c) {
  const std::int64_t before = live;
  most = before;
  for (auto _ : state) {
    const Program program = lower(c.model, c.plan, c.implementation);
    const Demands demands = demands_of(program.steady_step, program, c.context());
    benchmark::DoNotOptimize(simulate(program.steady_step, demands).duration);
    benchmark::DoNotOptimize(replay_memory(program).peak);
  }
  report_heap(state, before);
}
void llama3_70b(benchmark::State& state) { lower_and_simulate(state, Case("llama3-70b", state.range(0), 8192)); }
BENCHMARK(llama3_70b)->Arg(64)->Arg(1024)->Unit(benchmark::kMillisecond);

void llama3_70b_tensor_8_1024_gpus(benchmark::State& state) {
  lower_and_simulate(state, Case("llama3-70b", 1024, 8192, 8));
}
BENCHMARK(llama3_70b_tensor_8_1024_gpus)->Unit(benchmark::kMillisecond);

void llama3_405b_tensor_8_16384_gpus_16_micro_batches(benchmark::State& state) {
  lower_and_simulate(state, Case("llama3.1-405b", 16384, 8192, 8, 16));
}
BENCHMARK(llama3_405b_tensor_8_16384_gpus_16_micro_batches)->Unit(benchmark::kMillisecond);

void lower_only(benchmark::State& state) {
  const Case c("llama3-70b", 1024, 8192);
  for (auto _ : state) benchmark::DoNotOptimize(lower(c.model, c.plan, c.implementation).buffers.size());
}
BENCHMARK(lower_only)->Unit(benchmark::kMillisecond);

void search_llama3_8b_64_gpus(benchmark::State& state) {
  const Case c("llama3-8b", 64, 8192);
  SearchOptions options;
  options.base = c.plan;
  options.ranks = 64;
  options.memory_limit = default_memory_limit(c.cluster);
  PredictOptions predict_options;
  predict_options.memory_limit = options.memory_limit;
  predict_options.keep_timeline = false;
  std::int64_t scored = 0;
  for (auto _ : state) {
    const PlanResult result = search(c.model, c.cluster, c.implementation, options, [&](const ShardingPlan& plan) {
      Programs programs(resolve(c.model, plan, c.implementation, c.cluster));
      const Prediction p = predict(programs, c.costs, predict_options);
      return Score{p.step_time, p.peak_total, p.verdict, p.where};
    });
    scored = result.scored;
  }
  state.counters["scored"] = static_cast<double>(scored);
}
BENCHMARK(search_llama3_8b_64_gpus)->Unit(benchmark::kSecond)->Iterations(1);

}  // namespace

int main(int argc, char** argv) {
  fsdp::keep_freed_memory();  // as the program does
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
