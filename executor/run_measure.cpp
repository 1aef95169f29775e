// From the instruments' records to a Measurement.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>

#include "executor/kernels.h"
#include "executor/run_job.h"
#include "models/error.h"

namespace fsdp {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Linear between order statistics, as numpy's default.
double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double position = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

// From the end of the step before to this one's, without what after_step took between them.
double period(const RankJob& rank, std::size_t steady) {
  return rank.steady[steady].end - (steady == 0 ? rank.first.end : rank.steady[steady - 1].end) - rank.steady[steady].pause;
}

// Labels of what started, in the order in which it did: the step with its operations put in that order, labelled as predictions
// are.
std::vector<std::string> executed_order(const StepRecord& record, const RankJob& rank, const RunJob& job) {
  Step started = rank.program.steady_step;
  started.ops.clear();
  for (const OperationRecord& r : record.operations) started.ops.push_back(rank.program.steady_step.ops.at(at(r.op)));
  return order_labels(started, rank.program, job.plan, job.model);
}

// Operations that run on no stream get the time at which the host came to them: not before anything issued earlier began.
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

RankMeasurement measure_rank(const RunJob& job, std::size_t r, std::size_t median_step) {
  const RankJob& rank = job.ranks[r];
  const StepRecord& step = rank.steady[median_step];
  RankMeasurement m;
  m.rank = static_cast<std::int64_t>(r);
  m.order = executed_order(step, rank, job);
  const double duration = period(rank, median_step);
  m.timeline = timeline_of(step, rank, step.end - duration, duration);
  m.init = rank.init.memory;
  m.first_step = rank.first.memory;
  m.steady_step = step.memory;
  m.peak_allocated_bytes = std::max({m.init.peak(), m.first_step.peak(), m.steady_step.peak()});
  for (const OperationRecord& o : step.operations) m.wire_bytes += o.sent_bytes;
  const auto undeclared = [&](const StepRecord& s, const Step& of) {
    for (const OperationRecord& o : s.operations)
      m.undeclared_bytes = std::max(m.undeclared_bytes, job.undeclared(o, of.ops[at(o.op)]));
  };
  undeclared(rank.init, rank.program.init);
  undeclared(rank.first, rank.program.first_step);
  for (const StepRecord& s : rank.steady) undeclared(s, rank.program.steady_step);
  return m;
}

// The reduced loss is the mean over the global batch, on every rank.
std::vector<double> losses_of(const RunJob& job) {
  const RankJob& first = job.ranks.front();
  std::vector<double> losses = {first.first.loss};
  for (const StepRecord& s : first.steady) losses.push_back(s.loss);
  return losses;
}

}  // namespace

Measurement measure(const RunJob& job, const ClusterSpec& cluster, const Backend& backend) {
  Measurement m;
  const auto warmup = static_cast<std::size_t>(job.warmup()), total = static_cast<std::size_t>(job.steady_steps());
  for (std::size_t s = warmup; s < total; ++s) {
    double slowest = 0;
    for (const RankJob& rank : job.ranks) slowest = std::max(slowest, period(rank, s));
    m.step_seconds.push_back(slowest);
  }
  m.median_step_seconds = quantile(m.step_seconds, 0.5);
  m.noise = (quantile(m.step_seconds, 0.9) - quantile(m.step_seconds, 0.1)) / m.median_step_seconds;
  const auto nearest = std::min_element(m.step_seconds.begin(), m.step_seconds.end(), [&](double a, double b) {
    return std::abs(a - m.median_step_seconds) < std::abs(b - m.median_step_seconds);
  });
  const std::size_t median_step = warmup + static_cast<std::size_t>(nearest - m.step_seconds.begin());
  for (std::size_t r = 0; r < job.ranks.size(); ++r) m.ranks.push_back(measure_rank(job, r, median_step));
  const Program& program = job.ranks.front().program;
  m.by_action = times_by_action(program.steady_step, m.ranks.front().timeline, job.model);
  m.losses = losses_of(job);
  const Costs none;  // a measurement is made from no costs
  m.provenance = provenance_of(program, {job.model, job.plan, native_implementation(), cluster, none});
  m.provenance.costs_digest.clear();
  m.backend = backend.name();
  m.environment = fmt::format("{}, {}, kernels {}", backend.environment(), host_gemm_library(), kernel_instructions());
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) m.process_high_water_bytes = usage.ru_maxrss * 1024;  // Linux: KiB
  return m;
}

}  // namespace fsdp
