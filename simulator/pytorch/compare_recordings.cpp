#include "simulator/pytorch/compare_recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::size_t kFindings = 6;
constexpr double kWorthSaying = 0.01;  // of the step, or of the peak
constexpr double kSlower = 0.10;       // of one collective

std::string signed_time(double seconds) { return (seconds < 0 ? "-" : "+") + human(Seconds(std::abs(seconds))); }
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
  if (std::abs(difference(worst)) > kWorthSaying * report.peak.predicted)
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

using Pair = std::pair<const Collective*, const Collective*>;  // predicted, recorded

// The k-th of each kind belong together: ranks issue collectives in one order. Where the numbers differ, none do.
struct Pairs {
  std::vector<Pair> all;
  std::array<std::vector<const Collective*>, kCollectiveKinds> predicted, recorded;
};

Pairs paired(const TracedStep& predicted, const TracedStep& recorded) {
  Pairs pairs;
  for (const Collective& c : predicted.collectives) pairs.predicted[static_cast<std::size_t>(c.kind)].push_back(&c);
  for (const Collective& c : recorded.collectives) pairs.recorded[static_cast<std::size_t>(c.kind)].push_back(&c);
  for (std::size_t k = 0; k < pairs.predicted.size(); ++k)
    if (pairs.predicted[k].size() == pairs.recorded[k].size())
      for (std::size_t i = 0; i < pairs.predicted[k].size(); ++i)
        pairs.all.emplace_back(pairs.predicted[k][i], pairs.recorded[k][i]);
  return pairs;
}

double seconds_of(const Collective& c) { return c.span.end - c.span.start; }

std::string named(CollectiveKind kind, std::size_t count, std::int64_t bytes) {
  return fmt::format("{} {}{}{}", count, words(kind), count == 1 ? "" : "s",
                     bytes < 0 ? "" : " of " + human(Bytes(bytes)));
}

void compare_kinds(const Pairs& pairs, ValidationReport& report) {
  for (std::size_t k = 0; k < pairs.predicted.size(); ++k) {
    const auto kind = static_cast<CollectiveKind>(k);
    const auto& predicted = pairs.predicted[k];
    const auto& recorded = pairs.recorded[k];
    if (predicted.size() == recorded.size()) continue;
    CompareRow row{fmt::format("{}s ({} predicted, {} recorded)", words(kind), predicted.size(), recorded.size()), 0, 0,
                   "s"};
    for (const Collective* c : predicted) row.predicted += seconds_of(*c);
    for (const Collective* c : recorded) row.measured += seconds_of(*c);
    report.by_action.push_back(row);
    report.not_compared.push_back(
        fmt::format("each {} by itself: {} were predicted and {} recorded (another plan or number of micro-batches, "
                    "or collectives of the training script)",
                    words(kind), predicted.size(), recorded.size()));
  }
}

void compare_sizes(const Pairs& pairs, double step, ValidationReport& report) {
  struct Group {
    std::size_t count = 0;
    double predicted = 0, recorded = 0;
  };
  std::map<std::pair<CollectiveKind, std::int64_t>, Group> groups;
  for (const auto& [predicted, recorded] : pairs.all) {
    Group& g = groups[{recorded->kind, recorded->bytes}];
    ++g.count;
    g.predicted += seconds_of(*predicted);
    g.recorded += seconds_of(*recorded);
  }
  for (const auto& [key, g] : groups) {
    report.by_action.push_back({named(key.first, g.count, key.second), g.predicted, g.recorded, "s"});
    const double more = g.recorded - g.predicted;
    if (std::abs(more) < kWorthSaying * step || std::abs(more) < kSlower * g.predicted) continue;
    report.findings.push_back(
        {fmt::format("{} take {} instead of {} each ({} a step): {}", named(key.first, g.count, key.second),
                     human(Seconds(g.recorded / static_cast<double>(g.count))),
                     human(Seconds(g.predicted / static_cast<double>(g.count))), signed_time(more),
                     more > 0 ? "the network is slower than its costs say, or ranks wait for a late one (a trace of "
                                "another rank tells; `fsdp-plan calibrate --nccl-tests` measures the network)"
                              : "the network is faster than its costs say"),
         more});
  }
  std::stable_sort(report.by_action.begin(), report.by_action.end(), [](const CompareRow& a, const CompareRow& b) {
    return std::abs(difference(a)) > std::abs(difference(b));
  });
}

// What waits though it was predicted not to, and why.
void compare_exposed(const Pairs& pairs, double step, ValidationReport& report) {
  for (const auto& [predicted, recorded] : pairs.all) {
    const double more = recorded->exposed - predicted->exposed;
    if (more < kWorthSaying * step) continue;
    const bool slow = seconds_of(*recorded) > (1 + kSlower) * seconds_of(*predicted);
    report.findings.push_back(
        {fmt::format("the {} of {} is exposed for {}, predicted {}: {}", words(recorded->kind), predicted->object,
                     human(Seconds(recorded->exposed)), human(Seconds(predicted->exposed)),
                     slow ? fmt::format("it takes {} instead of {}", human(Seconds(seconds_of(*recorded))),
                                        human(Seconds(seconds_of(*predicted))))
                          : "it is no slower, but runs beside less compute (issued late: prefetch, a host that is "
                            "behind, CUDA_DEVICE_MAX_CONNECTIONS=1)"),
         more});
  }
}

void compare_trace(const Prediction& p, const RecordedTrace& t, ValidationReport& report) {
  if (t.ranks && *t.ranks != p.ranks)
    throw InputError({"trace", "distributedInfo.world_size"},
                     fmt::format("{} ranks were traced, the prediction is for {}", *t.ranks, p.ranks),
                     "predict the plan that ran");
  const TracedStep predicted = predicted_step(p);
  const TracedStep& recorded = t.step;
  report.time_compared = true;
  report.step_time = {"step time", predicted.duration, recorded.duration, "s"};
  report.where.push_back({"compute stream busy", predicted.busy, recorded.busy, "s"});
  for (std::size_t k = 0; k < predicted.exposed.size(); ++k)
    if (predicted.exposed[k] != 0 || recorded.exposed[k] != 0)
      report.where.push_back({fmt::format("exposed {}", words(static_cast<CollectiveKind>(k))), predicted.exposed[k],
                              recorded.exposed[k], "s"});
  report.where.push_back({"idle", predicted.idle, recorded.idle, "s"});
  const Pairs pairs = paired(predicted, recorded);
  const double step = std::max(predicted.duration, recorded.duration);
  compare_kinds(pairs, report);
  compare_sizes(pairs, step, report);
  compare_exposed(pairs, step, report);
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
  std::stable_sort(report.findings.begin(), report.findings.end(),
                   [](const Finding& a, const Finding& b) { return std::abs(a.seconds) > std::abs(b.seconds); });
  if (report.findings.size() > kFindings) report.findings.resize(kFindings);
  report.within = (!report.time_compared || std::abs(report.step_time.error()) <= tolerances.time) &&
                  (!report.memory_compared || std::abs(report.peak.error()) <= tolerances.memory);
  return report;
}

}  // namespace fsdp
