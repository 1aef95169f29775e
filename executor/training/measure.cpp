// From the instruments' records to a Measurement.
#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "executor/kernels/host_kernel_set.h"
#include "executor/training/rank_run.h"
#include "models/index.h"
#include "planner/costs.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/order.h"
#include "simulator/analysis/times.h"
#include "simulator/records/step_statistics.h"

namespace fsdp {
namespace {

// What started, in the order in which it did: the step with its operations put in that order.
std::vector<OrderedOperation> executed_order(const StepRecord& record, const RankJob& rank, const RunJob& job) {
  Step started = rank.program.steady_step;
  started.ops.clear();
  for (const OperationRecord& r : record.operations) started.ops.push_back(rank.program.steady_step.ops.at(at(r.op)));
  return order_of(started, job.plan, job.model);
}

// Operations that run on no stream get the time at which the host came to them: not before anything issued earlier
// began.
Timeline timeline_of(const StepRecord& record, const RankJob& rank, double begin, double duration) {
  Timeline t;
  t.duration = duration;
  t.spans.resize(rank.program.steady_step.ops.size());
  std::vector<char> ran(t.spans.size(), 0);
  for (const OperationRecord& r : record.operations) {
    t.spans.at(at(r.op)) = {r.start - begin, r.end - begin};
    ran[at(r.op)] = 1;
  }
  double latest = 0;
  for (std::size_t i = 0; i < t.spans.size(); ++i) {
    if (ran[i] == 0) t.spans[i] = {latest, latest};
    latest = std::max(latest, t.spans[i].end);
  }
  return t;
}

RankMeasurement measure_rank(const RunJob& job, std::size_t r, double median) {
  const RankJob &rank = job.ranks[r], &first = job.ranks.front();
  const StepLog::Kept& kept = rank.steady.nearest(first.slowest, first.measured_from, median);
  const double duration = rank.steady.seconds()[kept.step];
  RankMeasurement m;
  m.rank = static_cast<std::int64_t>(r);
  m.order = executed_order(kept.record, rank, job);
  m.timeline = timeline_of(kept.record, rank, kept.record.end - duration, duration);
  m.init = rank.init.memory;
  m.first_step = rank.first.memory;
  m.steady_step = rank.steady.memory();
  m.peak_allocated_bytes = std::max({m.init.peak(), m.first_step.peak(), m.steady_step.peak()});
  for (const OperationRecord& o : kept.record.operations) m.wire_bytes += o.sent_bytes;
  m.undeclared_bytes = rank.undeclared_bytes;
  m.by_action = times_by_action(rank.program.steady_step, m.timeline, job.model);
  m.by_unit = times_by_unit(rank.program.steady_step, m.timeline, job.plan, job.model);
  m.where = where_time_goes(rank.program.steady_step, m.timeline);
  m.arena_bytes = rank.program.arena_bytes;
  m.arena_resident_bytes = rank.arena_resident_bytes;
  return m;
}

// The reduced loss is the mean over the global batch, on every rank.
std::vector<double> losses_of(const RankJob& rank) {
  std::vector<double> losses = {rank.first.loss};
  losses.insert(losses.end(), rank.steady.losses().begin(), rank.steady.losses().end());
  return losses;
}

StepNoise noise_of(const RunJob& job, const RankJob& rank, std::span<const double> measured) {
  StepNoise n;
  n.warmup_steps = 1 + static_cast<std::int64_t>(rank.measured_from);
  n.stopped = rank.stopped;
  const auto settled = settled_after(measured);
  const bool warm = rank.measured_from >= static_cast<std::size_t>(job.warmup());
  n.settled = warm && (measured.size() < kFewestToSettle || settled == std::size_t{0});  // fewer do not tell
  n.p10_seconds = quantile(measured, 0.1);
  n.p90_seconds = quantile(measured, 0.9);
  n.independent_steps = independent_steps(measured);
  n.median_interval = median_interval(measured);
  return n;
}

}  // namespace

Measurement measure(const RunJob& job, const ClusterSpec& cluster, const Backend& backend) {
  Measurement m;
  const RankJob& first = job.ranks.front();
  m.step_seconds.assign(first.slowest.begin() + static_cast<std::ptrdiff_t>(first.measured_from), first.slowest.end());
  m.median_step_seconds = quantile(m.step_seconds, 0.5);
  m.noise = (quantile(m.step_seconds, 0.9) - quantile(m.step_seconds, 0.1)) / m.median_step_seconds;
  m.steps = noise_of(job, first, m.step_seconds);
  m.early_stop = first.early_stop;
  const std::size_t measured = backend.emulated() ? job.local_ranks.size() : job.ranks.size();
  for (std::size_t r = 0; r < measured; ++r) m.ranks.push_back(measure_rank(job, r, m.median_step_seconds));
  const Program& program = first.program;
  m.by_action = m.ranks.front().by_action;
  m.losses = losses_of(first);
  const Costs none;  // a measurement is made from no costs
  m.provenance = provenance_of(program, {job.model, job.plan, backend.implementation(), cluster, none});
  m.provenance.costs_digest.clear();
  m.backend = backend.name();
  m.environment = backend.environment();
  double other_processes = 0;
  for (std::size_t r = job.local_ranks.size(); r < job.ranks.size(); ++r)
    other_processes += job.ranks[r].process_seconds;
  m.machine = job.watch.finish(std::string(host_matmul_library()), std::string(host_kernel_set().instructions()),
                               other_processes);
  m.memory = job.memory;
  m.process_high_water_bytes = job.memory.high_water_bytes;
  return m;
}

}  // namespace fsdp
