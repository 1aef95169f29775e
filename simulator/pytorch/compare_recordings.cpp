#include "simulator/pytorch/compare_recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "models/input/error.h"
#include "simulator/pytorch/compare_traced.h"

namespace fsdp {
namespace {

constexpr double kPartWorthSaying = 0.01;  // of the peak

std::string signed_size(double bytes) { return (bytes < 0 ? "-" : "+") + human(Bytes(std::llround(std::abs(bytes)))); }
double difference(const CompareRow& row) { return row.measured - row.predicted; }

// --- memory ---

void compare_parts(const Prediction& p, const RecordedMemory& m, ValidationReport& report) {
  std::array<double, kRecordedParts> predicted{};
  for (int k = 0; k < kBufferKinds; ++k)
    predicted[static_cast<std::size_t>(recorded_part(static_cast<BufferKind>(k)))] +=
        static_cast<double>(p.peak_made_of[static_cast<std::size_t>(k)]);
  for (std::size_t k = 0; k < predicted.size(); ++k) {
    const CompareRow row{std::string(name(static_cast<RecordedPart>(k))), predicted[k],
                         static_cast<double>(m.at_peak[k]), "B"};
    if (row.predicted != 0 || row.measured != 0) report.memory.push_back(row);
  }
  std::stable_sort(report.memory.begin(), report.memory.end(), [](const CompareRow& a, const CompareRow& b) {
    return std::abs(difference(a)) > std::abs(difference(b));
  });
  if (report.memory.empty()) return;
  const CompareRow& worst = report.memory.front();
  if (std::abs(difference(worst)) > kPartWorthSaying * report.peak.predicted)
    report.findings.push_back({fmt::format("at the peak, {} differ most: {} against {} predicted ({})", worst.what,
                                           human(Bytes(std::llround(worst.measured))),
                                           human(Bytes(std::llround(worst.predicted))), signed_size(difference(worst))),
                               0});
}

void compare_memory(const Prediction& p, const RecordedMemory& m, ValidationReport& report) {
  report.memory_compared = true;
  report.peak = {fmt::format("peak allocated, GPU {}", m.device), static_cast<double>(p.peak_allocated.count()),
                 static_cast<double>(m.peak_allocated), "B"};
  const CompareRow reserved{fmt::format("peak reserved, GPU {}", m.device),
                            static_cast<double>(p.peak_reserved_estimate.count()), static_cast<double>(m.peak_reserved),
                            "B"};
  if (m.stacks) compare_parts(p, m, report);
  else
    report.not_compared.push_back(
        "what the peak is made of: the snapshot has no stacks (call torch.cuda.memory._record_memory_history() before "
        "the model is made)");
  report.memory.insert(report.memory.begin(), reserved);
  if (!m.history)
    report.doubts.push_back(
        "the snapshot has no history: its bytes are those of the moment of the dump, not of a peak (call "
        "torch.cuda.memory._record_memory_history() before the first step)");
  else if (!m.peak_at.empty() || !p.peak_at.empty())
    report.findings.push_back(
        {fmt::format("the peak was predicted at '{}'{}", p.peak_at,
                     m.peak_at.empty() ? "; the recorded one has no stack" : ", and recorded in " + m.peak_at),
         0});
  if (m.out_of_memory > 0)
    report.doubts.push_back(fmt::format("the allocator ran out of memory {} times: peaks end there", m.out_of_memory));
  report.memory_equal = std::abs(report.peak.error()) <= 0;
}

// --- time ---

void compare_trace(const Prediction& p, const RecordedTrace& t, ValidationReport& report) {
  if (t.ranks && *t.ranks != p.ranks)
    throw InputError({"trace", "distributedInfo.world_size"},
                     fmt::format("{} ranks were traced, the prediction is for {}", *t.ranks, p.ranks),
                     "predict the plan that ran");
  report.time_compared = true;
  report.step_time = {"step time", p.step_time.count(), t.step.duration, "s"};
  compare_traced(p, t.step, report);
  if (!t.marked)
    report.doubts.push_back(
        "the trace has no marks of profiler.step(): all of it counts as one step, from its first kernel to its last");
  else if (t.steps < 3)
    report.doubts.push_back(fmt::format("only {} steps were traced: the median of three or more is steadier", t.steps));
  report.doubts.push_back("the profiler itself slows the host: trust a step time without it more");
}

}  // namespace

ValidationReport compare_recordings(const Prediction& p, const Recordings& recordings, const Tolerances& tolerances) {
  ValidationReport report;
  report.order_compared = report.time_compared = report.memory_compared = false;
  report.order_equal = report.memory_equal = true;
  report.not_compared.push_back("order: PyTorch's own tools do not say which unit a collective is of");
  if (recordings.memory) compare_memory(p, *recordings.memory, report);
  else report.not_compared.push_back("memory: give a snapshot");
  if (recordings.trace) compare_trace(p, *recordings.trace, report);
  else report.not_compared.push_back("time: give a trace");
  keep_largest(report);
  report.within = (!report.time_compared || std::abs(report.step_time.error()) <= tolerances.time) &&
                  (!report.memory_compared || std::abs(report.peak.error()) <= tolerances.memory);
  return report;
}

}  // namespace fsdp
