#include "simulator/records/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "models/input/error.h"
#include "simulator/records/compare_observed.h"
#include "simulator/records/compare_times.h"

namespace fsdp {

namespace {

constexpr std::size_t kDifferences = 8;  // as many as are put into words

void check_same(const std::string& predicted, const std::string& measured, const char* what,
                const std::string& remedy) {
  if (predicted != measured)
    throw InputError(
        {"measurement", what},
        fmt::format("was made from another {} than the prediction ({} there, {} here)", what, predicted, measured),
        remedy);
}

void check_comparable(const Prediction& p, const Measurement& m) {
  check_same(p.provenance.model_digest, m.provenance.model_digest, "model", "predict and run the same model");
  check_same(p.provenance.plan_digest, m.provenance.plan_digest, "plan", "predict and run the same plan file");
  check_same(p.provenance.implementation, m.provenance.implementation, "implementation",
             "predict with the implementation that ran (--implementation " + m.provenance.implementation + ")");
  if (p.order.empty()) throw InputError({"prediction", "order"}, "is empty", "predict again with its timeline kept");
  std::set<std::int64_t> seen;
  for (const RankMeasurement& r : m.ranks) {
    if (r.rank < 0 || r.rank >= p.ranks || !seen.insert(r.rank).second)
      throw InputError({"measurement", "ranks"},
                       fmt::format("rank {} is unexpected or there twice; the plan has {}", r.rank, p.ranks));
  }
}

class Differences {
 public:
  explicit Differences(std::vector<std::string>& out) : out_(out) {}
  void add(std::string text) {
    if (out_.size() < kDifferences) out_.push_back(std::move(text));
  }

 private:
  std::vector<std::string>& out_;
};

// Lists are stream by stream: the position within a stream is the distance to the first operation of the same stream.
std::size_t position_in_stream(const std::vector<OrderedOperation>& order, std::size_t i) {
  std::size_t begin = i;
  while (begin > 0 && order[begin - 1].stream == order[i].stream) --begin;
  return i - begin;
}

bool same_order(const Prediction& p, const RankMeasurement& r, Differences& differences) {
  const auto [a, b] = std::mismatch(p.order.begin(), p.order.end(), r.order.begin(), r.order.end());
  if (a == p.order.end() && b == r.order.end()) return true;
  const bool none_predicted = a == p.order.end(), none_executed = b == r.order.end();
  const auto& list = none_predicted ? r.order : p.order;
  const auto i = static_cast<std::size_t>(none_predicted ? b - r.order.begin() : a - p.order.begin());
  differences.add(fmt::format("rank {}, stream {}, position {}: predicted {}, executed {}", r.rank,
                              letter(list[i].stream), position_in_stream(list, i),
                              none_predicted ? "nothing" : "'" + text(*a) + "'",
                              none_executed ? "nothing" : "'" + text(*b) + "'"));
  return false;
}

bool between(const MemoryPoint& least, const MemoryPoint& x, const MemoryPoint& most) {
  return least.at <= x.at && x.at <= most.at && least.after <= x.after && x.after <= most.after;
}

// Where blocks wait for streams (fsdp1): when these get there depends on time, and memory is compared by bounds.
bool within_bounds(const MemoryTimeline& least, const MemoryTimeline& most, const MemoryTimeline& m, std::int64_t rank,
                   const char* step, Differences& differences) {
  const std::string where = fmt::format("rank {}, {}", rank, step);
  if (least.start != m.start || least.points.size() != m.points.size() || most.points.size() != m.points.size()) {
    differences.add(fmt::format("{}: predicted {} B allocated at its start and {} operations, measured {} B and {}",
                                where, least.start, least.points.size(), m.start, m.points.size()));
    return false;
  }
  for (std::size_t i = 0; i < m.points.size(); ++i) {
    const MemoryPoint &low = least.points[i], &high = most.points[i], &x = m.points[i];
    if (between(low, x, high)) continue;
    differences.add(
        fmt::format("{}, operation {}: predicted {} to {} B before and {} to {} B after, measured {} B "
                    "and {} B",
                    where, i, low.at, high.at, low.after, high.after, x.at, x.after));
    return false;
  }
  return true;
}

bool same_memory(const MemoryTimeline& p, const MemoryTimeline* most, const MemoryTimeline& m, std::int64_t rank,
                 const char* step, Differences& differences) {
  if (p == m) return true;
  if (most != nullptr) return within_bounds(p, *most, m, rank, step, differences);
  const std::string where = fmt::format("rank {}, {}", rank, step);
  if (p.start != m.start) {
    differences.add(fmt::format("{}: predicted {} B allocated at its start, measured {} B", where, p.start, m.start));
  } else if (p.points.size() != m.points.size()) {
    differences.add(fmt::format("{}: predicted {} operations, measured {}", where, p.points.size(), m.points.size()));
  } else {
    const auto at = std::mismatch(p.points.begin(), p.points.end(), m.points.begin());
    differences.add(fmt::format("{}, operation {}: predicted {} B before and {} B after, measured {} B and {} B", where,
                                at.first - p.points.begin(), at.first->at, at.first->after, at.second->at,
                                at.second->after));
  }
  return false;
}

bool same_memory(const Prediction& p, const RankMeasurement& r, Differences& differences) {
  bool same = true;
  const ProgramMemory* memory = memory_of(p, r.rank);
  if (memory == nullptr) {
    differences.add(fmt::format("rank {}: no memory was predicted for it", r.rank));
    return false;
  }
  const HeldMemory* most = memory->most ? &*memory->most : nullptr;
  const auto check = [&](const MemoryTimeline& least, const MemoryTimeline* held, const MemoryTimeline& measured,
                         const char* step) { same &= same_memory(least, held, measured, r.rank, step, differences); };
  check(memory->init, most ? &most->init : nullptr, r.init, "init");
  check(memory->first_step, most ? &most->first_step : nullptr, r.first_step, "first step");
  check(memory->steady_step, most ? &most->steady_step : nullptr, r.steady_step, "steady step");
  if (r.undeclared_bytes != 0) {
    differences.add(fmt::format("rank {}: kernels took {} B that no operation declares", r.rank, r.undeclared_bytes));
    same = false;
  }
  return same;
}

// What was predicted of a measured peak: where blocks wait for streams, the nearest that lies between the bounds.
double predicted_peak(const ProgramMemory& memory, std::int64_t measured) {
  if (!memory.most) return static_cast<double>(memory.peak);
  return static_cast<double>(std::clamp(measured, memory.peak, std::max(memory.peak, memory.most->peak())));
}

// The rank whose peak was predicted worst.
CompareRow worst_peak(const Prediction& p, const Measurement& m) {
  CompareRow worst{"peak allocated", static_cast<double>(p.peak_allocated.count()), 0, "B"};
  bool any = false;
  for (const RankMeasurement& r : m.ranks) {
    const ProgramMemory* memory = memory_of(p, r.rank);
    if (memory == nullptr) continue;
    const CompareRow row{fmt::format("peak allocated, rank {}", r.rank),
                         predicted_peak(*memory, r.peak_allocated_bytes), static_cast<double>(r.peak_allocated_bytes),
                         "B"};
    if (!any || std::abs(row.error()) > std::abs(worst.error())) worst = row;
    any = true;
  }
  return worst;
}

}  // namespace

const ProgramMemory* memory_of(const Prediction& p, std::int64_t rank) {
  if (rank < 0 || rank >= p.ranks) return nullptr;
  if (p.role_of_rank.empty()) return rank == 0 || p.roles == 1 ? &p.memory : nullptr;
  const std::int32_t role = p.role_of_rank.at(static_cast<std::size_t>(rank));
  return role == 0 ? &p.memory : &p.other_roles.at(static_cast<std::size_t>(role - 1));
}

ValidationReport compare(const Prediction& p, const Measurement& m, const Tolerances& tolerances) {
  check_comparable(p, m);
  if (!m.observed.empty()) return compare_observed(p, m, tolerances);
  ValidationReport report;
  Differences differences(report.differences);
  const bool all_ranks = static_cast<std::int64_t>(m.ranks.size()) == p.ranks;
  if (!all_ranks) differences.add(fmt::format("{} ranks were measured, the plan has {}", m.ranks.size(), p.ranks));
  report.order_equal = report.memory_equal = all_ranks;
  for (const RankMeasurement& r : m.ranks) {
    report.order_equal &= same_order(p, r, differences);
    report.memory_equal &= same_memory(p, r, differences);
  }
  report.step_time = {"step time", p.step_time.count(), m.median_step_seconds, "s"};
  report.peak = worst_peak(p, m);
  compare_times(p, m, report);
  report.doubts = doubts(m);
  report.within = report.order_equal && report.memory_equal && std::abs(report.step_time.error()) <= tolerances.time &&
                  std::abs(report.peak.error()) <= tolerances.memory;
  return report;
}

}  // namespace fsdp
