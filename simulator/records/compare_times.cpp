#include "simulator/records/compare_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace fsdp {

namespace {

constexpr std::size_t kFindings = 6;
constexpr double kWorthSaying = 0.02;  // of the step
constexpr double kSlower = 0.10;       // of a kind of operation, on every rank
constexpr double kLate = 0.05;         // of a rank's kernels over the median rank's

// Seconds of one thing, whose key is a value: findings go by it, and only the report's rows are text.
template <class Key>
struct Row {
  Key what{};
  double predicted = 0, measured = 0;
};
using ActionRow = Row<ActionKey>;
using PartRow = Row<const BreakdownPart*>;

// Rows that differ equally stay in the order of their text.
struct ByText {
  template <class Key>
  bool operator()(const Key& a, const Key& b) const {
    return text(a) < text(b);
  }
};

std::string text(const BreakdownPart* part) { return std::string(part->label); }

std::string signed_time(double seconds) { return (seconds < 0 ? "-" : "+") + human(Seconds(std::abs(seconds))); }
std::string percent(double fraction) { return fmt::format("{:.0f} %", 100 * std::abs(fraction)); }

template <class AnyRow>
void sort_by_disagreement(std::vector<AnyRow>& rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const AnyRow& a, const AnyRow& b) {
    return std::abs(a.predicted - a.measured) > std::abs(b.predicted - b.measured);
  });
}

template <class Key>
std::vector<CompareRow> in_words(const std::vector<Row<Key>>& rows) {
  std::vector<CompareRow> words;
  for (const Row<Key>& row : rows) words.push_back({text(row.what), row.predicted, row.measured, "s"});
  return words;
}

// Of every rank where the document says it; else of rank 0.
std::vector<const std::vector<ActionTime>*> actions_of_ranks(const Measurement& m) {
  std::vector<const std::vector<ActionTime>*> all;
  for (const RankMeasurement& r : m.ranks)
    if (!r.by_action.empty()) all.push_back(&r.by_action);
  if (all.empty()) all.push_back(&m.by_action);
  return all;
}

double seconds_in(const std::vector<ActionTime>& actions, bool communication) {
  double sum = 0;
  for (const ActionTime& a : actions)
    if (is_collective(a.what.action) == communication) sum += a.seconds;
  return sum;
}

// Largest disagreement first, as all rows. Measured: mean over the ranks.
std::vector<ActionRow> compare_actions(const Prediction& p, const Measurement& m) {
  std::map<ActionKey, ActionRow, ByText> rows;
  for (const ActionTime& a : p.by_action) rows[a.what].predicted += a.seconds;
  const auto ranks = actions_of_ranks(m);
  for (const auto* actions : ranks)
    for (const ActionTime& a : *actions) rows[a.what].measured += a.seconds / static_cast<double>(ranks.size());
  std::vector<ActionRow> list;
  for (const auto& [what, row] : rows) list.push_back({what, row.predicted, row.measured});
  sort_by_disagreement(list);
  return list;
}

void fill_units(const Prediction& p, const Measurement& m, ValidationReport& report) {
  std::map<UnitKey, std::array<Row<UnitKey>, 2>, ByText> rows;
  double ranks = 0;
  for (const RankMeasurement& r : m.ranks) ranks += r.by_unit.empty() ? 0 : 1;
  if (p.by_unit.empty() || ranks == 0) {
    report.not_compared.push_back(
        fmt::format("times per unit: the {} has none (made by an earlier version, or while searching)",
                    p.by_unit.empty() ? "prediction" : "measurement"));
    return;
  }
  for (const UnitTime& u : p.by_unit) {
    rows[u.what][0].predicted += u.compute_seconds;
    rows[u.what][1].predicted += u.communication_seconds;
  }
  for (const RankMeasurement& r : m.ranks)
    for (const UnitTime& u : r.by_unit) {
      rows[u.what][0].measured += u.compute_seconds / ranks;
      rows[u.what][1].measured += u.communication_seconds / ranks;
    }
  for (auto& [what, both] : rows)
    for (int i = 0; i < 2; ++i) {
      const Row<UnitKey>& row = both[static_cast<std::size_t>(i)];
      if (row.predicted == 0 && row.measured == 0) continue;
      report.by_unit.push_back(
          {text(what) + (i == 0 ? ", kernels" : ", collectives"), row.predicted, row.measured, "s"});
    }
  sort_by_disagreement(report.by_unit);
}

std::vector<PartRow> compare_parts(const Prediction& p, const Measurement& m, ValidationReport& report) {
  double ranks = 0;
  for (const RankMeasurement& r : m.ranks) ranks += r.where ? 1 : 0;
  if (ranks == 0) {
    report.not_compared.push_back("exposed communication: the measurement does not say (made by an earlier version)");
    return {};
  }
  std::vector<PartRow> rows;
  for (const BreakdownPart& part : kBreakdownParts) {
    PartRow row{&part, (p.where.*part.member).count(), 0};
    for (const RankMeasurement& r : m.ranks)
      if (r.where) row.measured += ((*r.where).*part.member).count() / ranks;
    if (row.predicted != 0 || row.measured != 0) rows.push_back(row);
  }
  sort_by_disagreement(rows);
  return rows;
}

void fill_ranks(const Prediction& p, const Measurement& m, ValidationReport& report) {
  const double kernels = seconds_in(p.by_action, false), collectives = seconds_in(p.by_action, true);
  std::size_t missing = 0;
  for (const RankMeasurement& r : m.ranks) {
    if (r.by_action.empty()) {
      ++missing;
      continue;
    }
    report.by_rank.push_back({fmt::format("rank {}, kernels", r.rank), kernels, seconds_in(r.by_action, false), "s"});
    report.by_rank.push_back(
        {fmt::format("rank {}, collectives", r.rank), collectives, seconds_in(r.by_action, true), "s"});
  }
  if (missing > 0)
    report.not_compared.push_back(fmt::format(
        "kernels and collectives of {} of {} ranks: the measurement does not say (made by an earlier version)", missing,
        m.ranks.size()));
}

// --- words ---

class Findings {
 public:
  Findings(const Prediction& p, const Measurement& m, ValidationReport& report) : p_(p), m_(m), report_(report) {}

  void fill(const std::vector<ActionRow>& action_rows, const std::vector<PartRow>& part_rows) {
    late_rank();
    actions(action_rows);
    exposed(part_rows);
    std::stable_sort(report_.findings.begin(), report_.findings.end(),
                     [](const Finding& a, const Finding& b) { return std::abs(a.seconds) > std::abs(b.seconds); });
    if (report_.findings.size() > kFindings) report_.findings.resize(kFindings);
  }

 private:
  [[nodiscard]] bool worth(double seconds) const {
    return std::abs(seconds) > kWorthSaying * std::max(m_.median_step_seconds, p_.step_time.count());
  }
  void add(double seconds, std::string text) {
    if (worth(seconds)) report_.findings.push_back({std::move(text), seconds});
  }

  // Collectives end together, so a rank whose kernels take longer makes the others wait, and itself waits least.
  void late_rank() {
    std::vector<std::pair<double, std::int64_t>> kernels;
    for (const RankMeasurement& r : m_.ranks)
      if (!r.by_action.empty()) kernels.emplace_back(seconds_in(r.by_action, false), r.rank);
    if (kernels.size() < 2) return;
    std::sort(kernels.begin(), kernels.end());
    const double median = kernels[(kernels.size() - 1) / 2].first, most = kernels.back().first;
    if (median <= 0 || most / median - 1 < kLate) return;
    add(most - median, fmt::format("rank {} is late: its kernels take {} longer than the median rank's ({}), and the "
                                   "others wait for it in collectives: "
                                   "its core is slower or shared with something else",
                                   kernels.back().second, percent(most / median - 1), signed_time(most - median)));
  }

  void actions(const std::vector<ActionRow>& rows) {
    for (const ActionRow& row : rows) {
      const double seconds = row.measured - row.predicted;
      if (is_collective(row.what.action)) {
        add(seconds, collective(row, seconds));
      } else if (row.predicted == 0 || row.measured == 0) {
        add(seconds, fmt::format("{} {} ({})", text(row.what),
                                 row.predicted == 0 ? "was not predicted to take any time" : "took no time in the run",
                                 signed_time(seconds)));
      } else if (std::abs(row.measured / row.predicted - 1) >= kSlower) {
        add(seconds, kernel(row, seconds));
      }
    }
  }

  static std::string collective(const ActionRow& row, double seconds) {
    return fmt::format(
        "{} takes {} than predicted ({}, waiting for other ranks included): {}", text(row.what),
        row.predicted == 0 ? "more" : percent(row.measured / row.predicted - 1) + (seconds > 0 ? " longer" : " less"),
        signed_time(seconds),
        seconds > 0 ? "ranks arrive at different times, or more is moved at once than when it was calibrated"
                    : "calibrated on a busier machine, or at another number of ranks");
  }

  std::string kernel(const ActionRow& row, double seconds) const {
    double least = std::numeric_limits<double>::infinity(), most = 0;
    for (const auto* actions : actions_of_ranks(m_)) {
      double sum = 0;
      for (const ActionTime& a : *actions)
        if (a.what == row.what) sum += a.seconds;
      least = std::min(least, sum / row.predicted);
      most = std::max(most, sum / row.predicted);
    }
    const bool everywhere = seconds > 0 ? least > 1 + 0.5 * kSlower : most < 1 - 0.5 * kSlower;
    const char* hint = !everywhere   ? "something else ran on the cores of those ranks"
                       : seconds > 0 ? "its shapes are priced too low, or the machine is slower than when it was "
                                       "calibrated (caches and memory shared, a lower clock)"
                                     : "its shapes are priced too high, or the machine was busy when it was calibrated";
    return fmt::format("{} takes {} {} than predicted on {} ({}): {}", text(row.what),
                       percent(row.measured / row.predicted - 1), seconds > 0 ? "longer" : "less",
                       everywhere ? "every rank" : "some ranks", signed_time(seconds), hint);
  }

  void exposed(const std::vector<PartRow>& rows) {
    double predicted = 0, measured = 0;
    for (const PartRow& row : rows) {
      if (is_communication(*row.what)) {
        predicted += row.predicted;
        measured += row.measured;
      }
      if (row.what->member == &Breakdown::idle)
        add(row.measured - row.predicted,
            fmt::format(
                "the compute stream stands still {} than predicted with nothing else running ({}): hand-over between "
                "streams, threads that wait for a core, or issuing",
                row.measured > row.predicted ? "longer" : "less", signed_time(row.measured - row.predicted)));
    }
    const double seconds = measured - predicted;
    add(seconds, fmt::format("communication is {} exposed than predicted ({} of {}): {}", seconds > 0 ? "more" : "less",
                             signed_time(seconds), human(Seconds(std::max(measured, 0.0))),
                             seconds > 0 ? "it overlaps less with kernels, waits for other ranks, or is slower itself"
                                         : "it overlaps more with kernels, or is faster itself"));
  }

  const Prediction& p_;
  const Measurement& m_;
  ValidationReport& report_;
};

}  // namespace

void compare_times(const Prediction& p, const Measurement& m, ValidationReport& report) {
  const std::vector<ActionRow> actions = compare_actions(p, m);
  report.by_action = in_words(actions);
  fill_units(p, m, report);
  const std::vector<PartRow> parts = compare_parts(p, m, report);
  report.where = in_words(parts);
  fill_ranks(p, m, report);
  if (p.step_time.count() <= 0 || m.median_step_seconds <= 0)
    report.not_compared.push_back("step times: one of the two is 0");
  Findings(p, m, report).fill(actions, parts);
}

}  // namespace fsdp
