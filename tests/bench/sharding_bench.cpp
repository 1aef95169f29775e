// What sharding costs on the host: a step of about 110 million parameters on 2 ranks (fully sharded, one thread each)
// beside the same global batch unsharded in one process on 2 threads, in turns within one run:
//
//   halves   two unsharded replicas, half of the batch each, that never talk: no thread waits and no byte is moved, so
//            it is the least
//            that any unsharded step on 2 threads takes, but for the optimizer, which each of them runs over all
//              parameters where a
//            real one would run over half: `least` leaves out half of its time. (Summing the halves' gradients is left
//              out too.)
//   blas     one unsharded rank with the whole batch and two threads inside matmuls; every other kernel has
//            one.
//
// `over_...` = sharded seconds / theirs: at most 1.25 over `halves` is the goal. `cpu_...`: the same of processor time
// per step, which other load on the machine moves less. Not measured: what sharding saves, memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "executor/kernels/host_kernel_set.h"
#include "executor/kernels/matmul/matmul.h"
#include "executor/run.h"
#include "models/catalog.h"
#include "planner/job.h"
#include "planner/plan.h"
#include "planner/plan/naive_plan.h"

namespace {

using namespace fsdp;

constexpr int kSteps = 3;

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

ShardingPlan plan_of(const ModelGraph& model, std::int64_t ranks, std::int64_t sequences) {
  PlanOptions o;
  o.ranks = ranks;
  o.seq_len = 512;
  o.micro_batches = {sequences};
  o.dialect =
      ranks == 1 ? Dialect::ddp : Dialect::fsdp2;  // ddp over one rank: nothing is gathered, scattered or copied for it
  ShardingPlan p = naive_plan(model, o);
  p.param_dtype = p.reduce_dtype = p.master_dtype = DType::f32;
  return p;
}

struct Timed {
  double wall = 0, cpu = 0, optimizer = 0;  // of one step; cpu of the whole process
};

Timed steps_of(const ModelGraph& model, const ShardingPlan& plan) {
  const auto backend = make_host_backend({plan.replicate(), plan.shard()}, {600});
  double begin = 0, end = 0;
  RunOptions o;
  o.steps = kSteps;
  o.progress = [&](const StepReport& step) {
    if (step.done == step.total - kSteps) begin = processor_seconds();
    if (step.done == step.total) end = processor_seconds();
  };
  Programs programs(resolve(model, plan, backend->implementation(), load_cluster("host", plan.ranks())));
  const Measurement m = run(programs, *backend, o).measurement;
  Timed t{m.median_step_seconds, (end - begin) / kSteps, 0};
  for (const auto& a : m.by_action)
    if (a.what.action == Action::optimizer) t.optimizer = a.seconds;
  return t;
}

// Two replicas at once; processor time is that of both, sampled by the first.
Timed halves(const ModelGraph& model, const ShardingPlan& plan) {
  Timed a, b;
  std::thread other([&] { b = steps_of(model, plan); });
  a = steps_of(model, plan);
  other.join();
  return {std::max(a.wall, b.wall), a.cpu, std::max(a.optimizer, b.optimizer)};
}

void sharded_over_unsharded(benchmark::State& state) {
  const ModelGraph model = load_model(std::string(FSDP_BENCH_DIR) + "/llama-100m.json", 512);
  const ShardingPlan sharded = plan_of(model, 2, 1), half = plan_of(model, 1, 1), whole = plan_of(model, 1, 2);
  std::vector<Timed> s, h, b;
  for (auto _ : state) {
    s.push_back(steps_of(model, sharded));
    h.push_back(halves(model, half));
    use_library_threads(2);
    b.push_back(steps_of(model, whole));
    use_library_threads(1);
    state.SetIterationTime(s.back().wall);
  }
  const auto median = [](std::vector<Timed> of, double Timed::*what) {
    std::sort(of.begin(), of.end(), [what](const Timed& x, const Timed& y) { return x.*what < y.*what; });
    return of[(of.size() - 1) / 2].*what;
  };
  const double wall = median(s, &Timed::wall), cpu = median(s, &Timed::cpu);
  state.counters["sharded s"] = wall;
  state.counters["halves s"] = median(h, &Timed::wall);
  state.counters["blas s"] = median(b, &Timed::wall);
  state.counters["over_halves"] = wall / median(h, &Timed::wall);
  state.counters["over_least"] = wall / (median(h, &Timed::wall) - 0.5 * median(h, &Timed::optimizer));
  state.counters["over_blas"] = wall / median(b, &Timed::wall);
  state.counters["cpu s"] = cpu;
  state.counters["cpu_over_halves"] = cpu / median(h, &Timed::cpu);
  state.counters["cpu_over_blas"] = cpu / median(b, &Timed::cpu);
}
BENCHMARK(sharded_over_unsharded)->UseManualTime()->Unit(benchmark::kSecond)->Iterations(2);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("matrix products", std::string(host_matmul_library()));
  benchmark::AddCustomContext("kernels", std::string(host_kernel_set().instructions()));
  benchmark::RunSpecifiedBenchmarks();
}
