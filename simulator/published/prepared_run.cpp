// Prepared runs: lowered once, priced as often as there are costs.
#include <algorithm>

#include "planner/lower.h"
#include "simulator/allocator/replay.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/engine/engine.h"
#include "simulator/engine/memory.h"
#include "simulator/predict/allocation.h"
#include "simulator/predict/retries.h"
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

// By the caching allocator's model, with the libraries' workspaces.
struct Replayed {
  Replayed(const PreparedRun& run, const Costs& costs)
      : context{run.setup.model, run.few, *run.setup.implementation, run.setup.cluster, costs},
        steady(simulate(run.program.steady_step, demands_of(run.program.steady_step, run.program, context))),
        allocation(run.program, context, steady),
        capacity((run.setup.cluster.gpu.usable_memory - run.setup.cluster.fixed_memory).count()),
        expandable(run.setup.expandable_segments) {}

  [[nodiscard]] AllocatorPrediction without_limit() const { return allocation.with(kNoLimit, expandable); }
  [[nodiscard]] AllocatorPrediction limited() const { return allocation.with(capacity, expandable); }

  Replayed(const Replayed&) = delete;  // members refer to one another
  Replayed& operator=(const Replayed&) = delete;

  const CostContext context;
  const Timeline steady;
  const CachedAllocation allocation;
  const std::int64_t capacity;
  const bool expandable;
};

// As `predict` has it of a tight plan. To save time only where four fifths of what there is are allocated at once:
// published runs below do not stop.
Seconds stops_of_few(const PreparedRun& run) {
  constexpr double kNear = 0.8;
  const ClusterSpec& cluster = run.setup.cluster;
  const double device = static_cast<double>((cluster.gpu.usable_memory - cluster.fixed_memory).count());
  if (static_cast<double>(replay_memory(run.program).peak) < kNear * device) return {};
  const Costs costs = default_costs(cluster);
  const Replayed replayed(run, costs);
  const AllocatorPrediction free = replayed.without_limit();
  if (free.peak_reserved <= replayed.capacity || free.peak_allocated > replayed.capacity) return {};
  const AllocatorPrediction limited = replayed.limited();
  if (limited.out_of_memory) return {};
  const RetryStall stall =
      retry_stall(run.program, replayed.context, replayed.allocation.options(replayed.capacity, replayed.expandable),
                  limited.retries_per_step, /*vary=*/true);
  return stall.likely;
}

std::string key_of(const PreparedRun& run) {
  const RunSetup& s = run.setup;
  return s.model.digest() + run.few.digest() + s.cluster.digest() + digest(*s.implementation) +
         (s.expandable_segments ? "+" : "-");
}

// For each micro-batch as many as on average in `few`: how many one more makes in a replay is chance.
Seconds stops_of(const PreparedRun& run, KnownStops& known) {
  const std::string key = key_of(run);
  auto at = known.find(key);
  if (at == known.end()) at = known.emplace(key, stops_of_few(run)).first;
  return at->second *
         (static_cast<double>(run.setup.plan.micro_batches.size()) / static_cast<double>(run.few.micro_batches.size()));
}

}  // namespace

PreparedRun prepare(RunSetup setup) {
  KnownStops none;
  return prepare(std::move(setup), none);
}

PreparedRun prepare(RunSetup setup, KnownStops& known) {
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
  out.stops = stops_of(out, known);
  return out;
}

Seconds predict_step_time(const PreparedRun& run, const Costs& costs) {
  const double few = period(run.program, run.few, run.setup, costs);
  if (run.left_out == 0) return Seconds(few) + run.stops;
  const double fewer = period(run.fewer_program, run.fewer, run.setup, costs);
  return Seconds(few + static_cast<double>(run.left_out) * (few - fewer)) + run.stops;
}

Breakdown predict_breakdown(const PreparedRun& run, const Costs& costs) {
  const CostContext context{run.setup.model, run.few, *run.setup.implementation, run.setup.cluster, costs};
  const Step& step = run.program.steady_step;
  return where_time_goes(step, simulate(step, demands_of(step, run.program, context)));
}

Bytes predict_peak(const PreparedRun& run, const Costs& costs, MemoryKind kind) {
  const Replayed replayed(run, costs);
  AllocatorPrediction a = replayed.without_limit();
  if (a.peak_reserved > replayed.capacity && a.peak_allocated <= replayed.capacity)
    if (const AllocatorPrediction limited = replayed.limited(); !limited.out_of_memory) a = limited;
  return Bytes(kind == MemoryKind::allocated ? a.peak_allocated
               : kind == MemoryKind::active  ? a.peak_active
                                             : a.peak_reserved);
}

}  // namespace fsdp
