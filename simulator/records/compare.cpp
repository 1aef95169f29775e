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

bool same_memory(const MemoryTimeline& p, const MemoryTimeline& m, std::int64_t rank, const char* step,
                 Differences& differences) {
  if (p == m) return true;
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
  same &= same_memory(memory->init, r.init, r.rank, "init", differences);
  same &= same_memory(memory->first_step, r.first_step, r.rank, "first step", differences);
  same &= same_memory(memory->steady_step, r.steady_step, r.rank, "steady step", differences);
  if (r.undeclared_bytes != 0) {
    differences.add(fmt::format("rank {}: kernels took {} B that no operation declares", r.rank, r.undeclared_bytes));
    same = false;
  }
  return same;
}

// The rank whose peak was predicted worst.
CompareRow worst_peak(const Prediction& p, const Measurement& m) {
  CompareRow worst{"peak allocated", static_cast<double>(p.peak_allocated.count()), 0, "B"};
  bool any = false;
  for (const RankMeasurement& r : m.ranks) {
    const ProgramMemory* memory = memory_of(p, r.rank);
    if (memory == nullptr) continue;
    const CompareRow row{fmt::format("peak allocated, rank {}", r.rank), static_cast<double>(memory->peak),
                         static_cast<double>(r.peak_allocated_bytes), "B"};
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
