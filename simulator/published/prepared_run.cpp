// Prepared runs: lowered once, priced as often as there are costs.
#include <algorithm>
#include <array>

#include "planner/lower.h"
#include "simulator/allocator/replay.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/engine/engine.h"
#include "simulator/published/run_setup.h"

namespace fsdp {
namespace {

constexpr std::int64_t kFew = 4;  // equal micro-batches that are lowered at most

ShardingPlan without(ShardingPlan plan, std::int64_t micro_batches) {
  plan.micro_batches.erase(plan.micro_batches.begin(), plan.micro_batches.begin() + micro_batches);
  return plan;
}

double period(const Program& program, const ShardingPlan& plan, const RunSetup& s, const Costs& costs) {
  const CostContext context{s.model, plan, *s.implementation, s.cluster, costs};
  return simulate(program.steady_step, demands_of(program.steady_step, program, context)).duration;
}

}  // namespace

PreparedRun prepare(RunSetup setup) {
  PreparedRun out;
  const auto all = static_cast<std::int64_t>(setup.plan.micro_batches.size());
  out.left_out = std::max<std::int64_t>(0, all - 1 - kFew);  // the last may be smaller
  out.few = without(setup.plan, out.left_out);
  const auto lowered = [&](const ShardingPlan& plan) { return lower(setup.model, plan, *setup.implementation); };
  out.program = lowered(out.few);
  if (out.left_out > 0) {
    out.fewer = without(out.few, 1);
    out.fewer_program = lowered(out.fewer);
  }
  out.setup = std::move(setup);
  return out;
}

Seconds predict_step_time(const PreparedRun& run, const Costs& costs) {
  const double few = period(run.program, run.few, run.setup, costs);
  if (run.left_out == 0) return Seconds(few);
  const double fewer = period(run.fewer_program, run.fewer, run.setup, costs);
  return Seconds(few + static_cast<double>(run.left_out) * (few - fewer));
}

Breakdown predict_breakdown(const PreparedRun& run, const Costs& costs) {
  const CostContext context{run.setup.model, run.few, *run.setup.implementation, run.setup.cluster, costs};
  const Step& step = run.program.steady_step;
  return where_time_goes(step, simulate(step, demands_of(step, run.program, context)));
}

Bytes predict_peak(const PreparedRun& run, const Costs& costs, MemoryKind kind) {
  const RunSetup& s = run.setup;
  const CostContext context{s.model, run.few, *s.implementation, s.cluster, costs};
  const Program& p = run.program;
  const Timeline first = simulate(p.first_step, demands_of(p.first_step, p, context), {.steps = 1});
  const Timeline steady = simulate(p.steady_step, demands_of(p.steady_step, p, context));
  const std::array<FixedAllocation, 2> cublas = cublas_workspaces(s.cluster.gpu);
  AllocatorSettings settings;
  settings.expandable_segments = s.expandable_segments;
  const auto replayed = [&] {
    return replay_allocator(p, {.settings = settings, .fixed = cublas, .first_step = &first, .steady_step = &steady});
  };
  AllocatorPrediction a = replayed();
  const std::int64_t capacity = (s.cluster.gpu.usable_memory - s.cluster.fixed_memory).count();
  if (a.peak_reserved > capacity && a.peak_allocated <= capacity) {
    settings.capacity = capacity;
    if (const AllocatorPrediction limited = replayed(); !limited.out_of_memory) a = limited;
  }
  return Bytes(kind == MemoryKind::allocated ? a.peak_allocated
               : kind == MemoryKind::active  ? a.peak_active
                                             : a.peak_reserved);
}

}  // namespace fsdp
