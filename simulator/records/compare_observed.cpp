#include "simulator/records/compare_observed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "models/index.h"
#include "models/input/error.h"

namespace fsdp {

namespace {

constexpr std::string_view kMemory = "memory", kStepTime = "step_time", kCollectiveTimes = "collective_times",
                           kKernelTimes = "kernel_times";

struct Observed {
  std::set<Action> actions;
  bool memory = false, step_time = false, profile = false;
};

Observed observed_of(const Measurement& m) {
  Observed seen;
  for (const std::string& what : m.observed) {
    const std::optional<ActionKey> key = parse_action_key(what);
    if (what == kMemory) seen.memory = true;
    else if (what == kStepTime) seen.step_time = true;
    else if (what == kCollectiveTimes || what == kKernelTimes) seen.profile = true;
    else if (key && !key->op) seen.actions.insert(key->action);
    else
      throw InputError({"measurement", "observed"}, "'" + what + "' is nothing that is compared",
                       "record again with the recorder of this version");
  }
  return seen;
}

// An operation of the steady step, and which.
struct Issued {
  const OrderedOperation* what;
  std::size_t op;
};

std::vector<Issued> issued_of(const Prediction& p, const Observed& seen) {
  if (p.issued.empty())
    throw InputError({"prediction", "issued"}, "is missing: an earlier version wrote the file", "predict again");
  std::vector<Issued> list;
  for (std::size_t i = 0; i < p.issued.size(); ++i)
    if (p.issued[i] >= 0 && seen.actions.contains(p.order[at(p.issued[i])].action))
      list.push_back({&p.order[at(p.issued[i])], i});
  return list;
}

// " mb 3" of what an operation works on.
std::string_view micro_batch_of(std::string_view object) {
  const std::size_t at = object.rfind(" mb ");
  return at == std::string_view::npos ? std::string_view() : object.substr(at);
}

// A recorder sees what is issued over tensor ranks, and when, but not for which operation of the model.
bool same(const OrderedOperation& predicted, const OrderedOperation& executed) {
  if (predicted.stream != Stream::tensor || executed.stream != Stream::tensor) return predicted == executed;
  return predicted.action == executed.action && micro_batch_of(predicted.object) == micro_batch_of(executed.object);
}

// Adds the first difference of a rank's order to the report.
void compare_order(const std::vector<Issued>& predicted, const RankMeasurement& r, ValidationReport& report) {
  const auto [a, b] = std::mismatch(predicted.begin(), predicted.end(), r.order.begin(), r.order.end(),
                                    [](const Issued& i, const OrderedOperation& o) { return same(*i.what, o); });
  if (a == predicted.end() && b == r.order.end()) return;
  report.order_equal = false;
  report.differences.push_back(fmt::format("rank {}, position {} of what was observed: predicted {}, executed {}",
                                           r.rank, a - predicted.begin(),
                                           a == predicted.end() ? "nothing" : "'" + text(*a->what) + "'",
                                           b == r.order.end() ? "nothing" : "'" + text(*b) + "'"));
}

// Cast shards go when PyTorch's all-gather has been issued, here before: no operation allocates between the two.
// PyTorch reduces split logits over tensor ranks in the midst of the loss's kernels, which are one operation here.
bool reduces_loss(const Issued& i) {
  return i.what->stream == Stream::tensor && i.what->object.find("loss") != std::string::npos;
}
bool compares_memory(const Issued& i) { return i.what->action != Action::all_gather && !reduces_loss(i); }

// A shard group of one rank gathers nothing. PyTorch then casts and copies parameter by parameter, so that it holds one
// cast when the last is copied; here all casts are made at once, and go with the copy (docs/fsdp-order.md, F2).
bool gathers(const Prediction& p) {
  return std::any_of(p.order.begin(), p.order.end(), [](const OrderedOperation& o) {
    return o.action == Action::all_gather && o.stream != Stream::tensor;
  });
}

// The moment of a rank whose bytes differ most.
void compare_moments(const std::vector<Issued>& predicted, const ProgramMemory& memory, const RankMeasurement& r,
                     bool gathers, double tolerance, ValidationReport& report) {
  std::size_t worst = 0;
  std::int64_t difference = 0;
  const auto bytes = [&](std::size_t i) {
    const MemoryPoint& point = memory.steady_step.points[predicted[i].op];
    if (gathers || predicted[i].what->action != Action::gather_copy_out) return point.at;
    return std::clamp(r.moments[i], std::min(point.after, point.at), point.at);
  };
  for (std::size_t i = 0; i < r.moments.size(); ++i) {
    if (!compares_memory(predicted[i]) || std::abs(bytes(i) - r.moments[i]) <= std::abs(difference)) continue;
    worst = i;
    difference = bytes(i) - r.moments[i];
  }
  if (std::abs(static_cast<double>(difference)) <= tolerance * static_cast<double>(memory.peak)) return;
  report.memory_equal = false;
  report.differences.push_back(
      fmt::format("rank {}, at '{}': predicted {} B allocated, measured {} B ({:+.2f} % of the peak)", r.rank,
                  text(*predicted[worst].what), bytes(worst), r.moments[worst],
                  100 * static_cast<double>(difference) / static_cast<double>(memory.peak)));
}

// The recorder's peak is that of a later step, up to the optimizer.
std::int64_t training_peak(const Prediction& p, const ProgramMemory& memory) {
  std::int64_t peak = memory.steady_step.start;
  for (std::size_t i = 0; i < p.issued.size(); ++i) {
    if (p.issued[i] >= 0 && p.order[at(p.issued[i])].action == Action::optimizer) break;
    peak = std::max(peak, memory.steady_step.points[i].at);
  }
  return peak;
}

void compare_rank(const Prediction& p, const std::vector<Issued>& predicted, const RankMeasurement& r,
                  const Observed& seen, const Tolerances& tolerances, ValidationReport& report) {
  compare_order(predicted, r, report);
  if (seen.profile && !r.profiled)
    throw InputError({"measurement", "ranks.profiled_step"},
                     fmt::format("is missing of rank {}, though its times were observed", r.rank),
                     "record again, or take \"collective_times\" and \"kernel_times\" out of observed");
  if (!seen.memory) return;
  const ProgramMemory* memory = memory_of(p, r.rank);
  if (r.moments.size() != r.order.size())
    throw InputError({"measurement", "ranks.moments_bytes"},
                     fmt::format("has {} numbers for {} operations of rank {}, though memory was observed",
                                 r.moments.size(), r.order.size(), r.rank),
                     "record again, or take \"memory\" out of observed");
  if (memory == nullptr) {
    report.not_compared.push_back(fmt::format("memory of rank {}: it was not predicted", r.rank));
    return;
  }
  if (memory->steady_step.points.size() != p.issued.size())
    throw InputError({"prediction", "other_roles"}, "has memory of another step", "predict again");
  const CompareRow peak{fmt::format("peak allocated, rank {}", r.rank), static_cast<double>(training_peak(p, *memory)),
                        static_cast<double>(r.peak_allocated_bytes), "B"};
  if (report.peak.what.empty() || std::abs(peak.error()) > std::abs(report.peak.error())) report.peak = peak;
  if (r.moments.size() != predicted.size())
    report.not_compared.push_back(fmt::format("memory by moment of rank {}: its order differs", r.rank));
  else if (!predicted.empty()) compare_moments(predicted, *memory, r, gathers(p), tolerances.memory, report);
}

}  // namespace

ValidationReport compare_observed(const Prediction& p, const Measurement& m, const Tolerances& tolerances) {
  const Observed seen = observed_of(m);
  if (m.ranks.empty()) throw InputError({"measurement", "ranks"}, "is empty", "record again");
  const std::vector<Issued> predicted = issued_of(p, seen);
  ValidationReport report;
  report.order_equal = report.memory_equal = true;
  for (const RankMeasurement& r : m.ranks) compare_rank(p, predicted, r, seen, tolerances, report);
  if (static_cast<std::int64_t>(m.ranks.size()) != p.ranks) {
    report.order_equal = report.memory_equal = false;
    report.differences.push_back(fmt::format("{} ranks were measured, the plan has {}", m.ranks.size(), p.ranks));
  }
  report.step_time = {"step time", p.step_time.count(), m.median_step_seconds, "s"};
  report.order_compared = !seen.actions.empty();
  report.time_compared = seen.step_time;
  report.memory_compared = seen.memory && !report.peak.what.empty();
  if (!report.order_compared) report.not_compared.push_back("order: the measurement observed no operation");
  if (!seen.step_time)
    report.not_compared.push_back(
        "step time: the measurement did not observe it (PyTorch's kernels on a CPU have no "
        "costs here)");
  if (!seen.memory) report.not_compared.push_back("memory: the measurement did not observe it");
  if (seen.memory && std::any_of(predicted.begin(), predicted.end(), reduces_loss))
    report.not_compared.push_back("memory within the loss of split logits: its kernels are one operation here");
  report.not_compared.push_back("order of kernels: a recorder of PyTorch sees collectives and copies, not each kernel");
  if (!seen.profile) report.not_compared.push_back("times of collectives: the measurement holds no profile of a step");
  report.doubts = doubts(m);
  report.within = report.order_equal && report.memory_equal &&
                  (!report.time_compared || std::abs(report.step_time.error()) <= tolerances.time) &&
                  (!report.memory_compared || std::abs(report.peak.error()) <= tolerances.memory);
  return report;
}

}  // namespace fsdp
