#include "simulator/pytorch/compare_traced.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "models/index.h"
#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr std::size_t kFindings = 6;
constexpr double kWorthSaying = 0.01;  // of the step
constexpr double kSlower = 0.10;       // of one collective

std::string signed_time(double seconds) { return (seconds < 0 ? "-" : "+") + human(Seconds(std::abs(seconds))); }

std::optional<CollectiveKind> kind_of(Action action) {
  switch (action) {
    case Action::all_gather: return CollectiveKind::all_gather;
    case Action::reduce_scatter: return CollectiveKind::reduce_scatter;
    case Action::all_reduce:
    case Action::clip_reduce:
    case Action::reduce_loss: return CollectiveKind::all_reduce;
    default: return std::nullopt;
  }
}

TracedStep predicted_step(const Prediction& p) {
  if (p.issued.empty() || p.timeline.spans.size() != p.issued.size())
    throw InputError({"prediction", "timeline"}, "does not say when each operation runs",
                     "write it with `fsdp-plan simulate ... -o prediction.json` of this version");
  TracedStep step;
  step.duration = p.step_time.count();
  for (std::size_t i = 0; i < p.issued.size(); ++i) {
    if (p.issued[i] < 0) continue;
    const OrderedOperation& op = p.order[at(p.issued[i])];
    if (const auto kind = kind_of(op.action); kind && p.ranks > 1)
      step.collectives.push_back({*kind, op.object, -1, p.timeline.spans[i]});
    else if (op.stream == Stream::compute) step.compute.push_back(p.timeline.spans[i]);
  }
  finish(step);
  return step;
}

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
    return std::abs(a.measured - a.predicted) > std::abs(b.measured - b.predicted);
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

// --- several ranks ---

using Ranks = std::vector<const RankMeasurement*>;

Ranks profiled(const Measurement& m) {
  Ranks ranks;
  for (const RankMeasurement& r : m.ranks)
    if (r.profiled) ranks.push_back(&r);
  return ranks;
}

bool same_collectives(const Ranks& ranks) {
  const auto kind = [](const Collective& a, const Collective& b) { return a.kind == b.kind; };
  return std::all_of(ranks.begin(), ranks.end(), [&](const RankMeasurement* r) {
    const auto &a = r->profiled->collectives, &b = ranks.front()->profiled->collectives;
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), kind);
  });
}

// Of one collective on all ranks: the shortest, which is that of the rank that came last.
double shortest(const Ranks& ranks, std::size_t k) {
  double least = seconds_of(ranks.front()->profiled->collectives[k]);
  for (const RankMeasurement* r : ranks) least = std::min(least, seconds_of(r->profiled->collectives[k]));
  return least;
}

// The rank that waits least in collectives, if the others wait for it long enough.
void find_late_rank(const Ranks& ranks, const std::vector<double>& without_waiting, double step,
                    ValidationReport& report) {
  std::vector<double> waits;
  for (const RankMeasurement* r : ranks) {
    waits.push_back(0);
    for (std::size_t k = 0; k < without_waiting.size(); ++k)
      waits.back() += seconds_of(r->profiled->collectives[k]) - without_waiting[k];
  }
  const auto late = std::min_element(waits.begin(), waits.end());
  double others = 0;
  for (const double wait : waits) others += wait - *late;
  others /= static_cast<double>(ranks.size() - 1);
  if (others < kWorthSaying * step) return;
  report.findings.push_back(
      {fmt::format("rank {} comes last to collectives: the others wait {} longer a step in them",
                   ranks[static_cast<std::size_t>(late - waits.begin())]->rank, human(Seconds(others))),
       others});
}

TracedStep of_all_ranks(const Ranks& ranks, double step, ValidationReport& report) {
  TracedStep first = *ranks.front()->profiled;
  if (ranks.size() == 1) return first;
  if (!same_collectives(ranks)) {
    report.doubts.push_back(
        fmt::format("ranks ran different collectives: times are those of rank {}, with its waiting for others",
                    ranks.front()->rank));
    return first;
  }
  std::vector<double> without_waiting;
  for (std::size_t k = 0; k < first.collectives.size(); ++k) without_waiting.push_back(shortest(ranks, k));
  find_late_rank(ranks, without_waiting, step, report);
  for (std::size_t k = 0; k < without_waiting.size(); ++k)
    first.collectives[k].span.start = first.collectives[k].span.end - without_waiting[k];
  return first;
}

// What was seen on processors.
std::string seen_on_processors(const TracedStep& s) {
  std::array<std::size_t, kCollectiveKinds> counts{};
  std::array<double, kCollectiveKinds> seconds{};
  for (const Collective& c : s.collectives) {
    ++counts[static_cast<std::size_t>(c.kind)];
    seconds[static_cast<std::size_t>(c.kind)] += seconds_of(c);
  }
  std::string text = fmt::format("operators {}", human(Seconds(s.busy)));
  for (std::size_t k = 0; k < counts.size(); ++k)
    if (counts[k] > 0)
      text += fmt::format(", {} {}", named(static_cast<CollectiveKind>(k), counts[k], -1), human(Seconds(seconds[k])));
  return fmt::format(
      "times of operators and collectives on processors, where PyTorch and gloo have no costs here: {} "
      "in a step of {}",
      text, human(Seconds(s.duration)));
}

}  // namespace

void keep_largest(ValidationReport& report) {
  std::stable_sort(report.findings.begin(), report.findings.end(),
                   [](const Finding& a, const Finding& b) { return std::abs(a.seconds) > std::abs(b.seconds); });
  if (report.findings.size() > kFindings) report.findings.resize(kFindings);
}

void compare_traced(const Prediction& p, const TracedStep& recorded, ValidationReport& report) {
  const TracedStep predicted = predicted_step(p);
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
}

void compare_profiles(const Prediction& p, const Measurement& m, ValidationReport& report) {
  const Ranks ranks = profiled(m);
  if (ranks.empty()) return;
  if (!ranks.front()->profiled->on_gpu) {
    report.not_compared.push_back(seen_on_processors(*ranks.front()->profiled));
    return;
  }
  const double step = std::max(p.step_time.count(), ranks.front()->profiled->duration);
  compare_traced(p, of_all_ranks(ranks, step, report), report);
  report.doubts.push_back("the profiler itself slows the host: trust the step time, which is of other steps, more");
  keep_largest(report);
}

}  // namespace fsdp
