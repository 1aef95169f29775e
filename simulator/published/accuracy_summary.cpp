// What the errors of many rows come to.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "simulator/published/accuracy.h"

namespace fsdp {
namespace {

constexpr double kSameTime = 0.02;  // measured times this close have no order
constexpr std::size_t kLeastInGroup = 5;

// The value below which a share q of the sorted numbers lies, between neighbours.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

std::string scale_of(std::int64_t gpus) {
  struct Band {
    std::int64_t most;
    const char* name;
  };
  constexpr std::array kBands{Band{8, "to 8 GPUs"}, Band{32, "9 to 32 GPUs"}, Band{128, "33 to 128 GPUs"},
                              Band{512, "129 to 512 GPUs"}};
  for (const Band& b : kBands)
    if (gpus <= b.most) return b.name;
  return "over 512 GPUs";
}

using Picked = std::vector<const AccuracyRow*>;

ErrorSummary errors_of(const Picked& rows, std::optional<double> (AccuracyRow::*error)() const) {
  std::vector<double> errors;
  std::vector<std::string> ids;
  for (const AccuracyRow* r : rows)
    if (const auto e = (r->*error)()) errors.push_back(*e), ids.push_back(r->id);
  return summarize_errors(errors, ids);
}

AccuracyGroup group(std::string by, std::string name, const Picked& rows) {
  return {std::move(by), std::move(name), errors_of(rows, &AccuracyRow::step_time_error),
          errors_of(rows, &AccuracyRow::peak_error)};
}

template <class Key>
void add_groups(std::vector<AccuracyGroup>& out, const std::string& by, std::span<const AccuracyRow> rows,
                const Key& key) {
  std::map<decltype(key(rows[0])), std::pair<std::string, Picked>>
      groups;  // in the key's order, with the name that people read
  for (const AccuracyRow& r : rows) groups[key(r)].second.push_back(&r);
  for (auto& [k, g] : groups) {
    if constexpr (std::is_same_v<std::decay_t<decltype(k)>, std::string>) g.first = k;
    else g.first = scale_of(k);
    out.push_back(group(by, g.first.empty() ? "not stated" : g.first, g.second));
  }
}

std::int64_t band(std::int64_t gpus) {
  return gpus <= 8 ? 8 : gpus <= 32 ? 32 : gpus <= 128 ? 128 : gpus <= 512 ? 512 : 513;
}

struct Times {
  double measured, predicted;
};
struct Pairs {
  std::int64_t count = 0, score = 0;
};

// Counts of what was inserted so far, by rank (a Fenwick tree).
class RankCounts {
 public:
  explicit RankCounts(std::size_t n) : tree_(n + 1, 0) {}
  void insert(std::size_t rank) {
    for (std::size_t i = rank + 1; i < tree_.size(); i += i & (~i + 1)) ++tree_[i];
  }
  [[nodiscard]] std::int64_t below(std::size_t rank) const {
    std::int64_t sum = 0;
    for (std::size_t i = rank; i > 0; i -= i & (~i + 1)) sum += tree_[i];
    return sum;
  }

 private:
  std::vector<std::int64_t> tree_;
};

// Pairs far enough apart, and those in the right order less those in the wrong one: a sweep from the shortest measured
// time on, in which every row meets all that are shorter by kSameTime and more.
Pairs pairs_of(std::vector<Times> times) {
  std::sort(times.begin(), times.end(), [](const Times& a, const Times& b) { return a.measured < b.measured; });
  std::vector<double> predicted;
  for (const Times& t : times) predicted.push_back(t.predicted);
  std::sort(predicted.begin(), predicted.end());
  const auto rank = [&](auto bound, double value) {
    return static_cast<std::size_t>(bound(predicted.begin(), predicted.end(), value) - predicted.begin());
  };
  const auto lower = [&](double v) { return rank([](auto... a) { return std::lower_bound(a...); }, v); };
  const auto upper = [&](double v) { return rank([](auto... a) { return std::upper_bound(a...); }, v); };
  RankCounts seen(times.size());
  Pairs out;
  std::size_t inserted = 0;
  for (const Times& t : times) {
    while (inserted < times.size() && t.measured - times[inserted].measured >= kSameTime * t.measured)
      seen.insert(lower(times[inserted++].predicted));
    const std::int64_t faster = seen.below(lower(t.predicted)), not_slower = seen.below(upper(t.predicted));
    out.count += static_cast<std::int64_t>(inserted);
    out.score += faster - (static_cast<std::int64_t>(inserted) - not_slower);
  }
  return out;
}

bool in_headline(const AccuracyRow& r) { return r.trust == "A" && !r.float8; }

}  // namespace

ErrorSummary summarize_errors(std::span<const double> errors, std::span<const std::string> ids) {
  ErrorSummary s;
  if (errors.empty()) return s;
  std::vector<double> sizes;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    sizes.push_back(std::abs(errors[i]));
    s.mean += sizes[i];
    s.bias += errors[i];
    if (sizes[i] > sizes[worst]) worst = i;
  }
  const auto n = static_cast<double>(errors.size());
  s.rows = static_cast<std::int64_t>(errors.size());
  s.mean /= n;
  s.bias /= n;
  s.worst = sizes[worst];
  if (worst < ids.size()) s.worst_id = ids[worst];
  std::sort(sizes.begin(), sizes.end());
  s.median = quantile(sizes, 0.5);
  s.p90 = quantile(sizes, 0.9);
  return s;
}

RankAgreement rank_agreement(std::span<const AccuracyRow> rows) {
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<Times>> groups;
  for (const AccuracyRow& r : rows)
    if (r.measured_step_time_s && r.predicted_step_time_s)
      groups[{r.source, r.gpu, r.model}].push_back({*r.measured_step_time_s, *r.predicted_step_time_s});
  RankAgreement out;
  double agree = 0, taus = 0;
  for (auto& [key, times] : groups) {
    if (times.size() < kLeastInGroup) continue;
    const Pairs p = pairs_of(times);
    if (p.count == 0) continue;
    ++out.groups;
    out.pairs += p.count;
    agree += static_cast<double>(p.score);
    taus += static_cast<double>(p.score) / static_cast<double>(p.count);
  }
  if (out.pairs > 0)
    out.tau = agree / static_cast<double>(out.pairs), out.mean_tau = taus / static_cast<double>(out.groups);
  return out;
}

AccuracySummary summarize(std::span<const AccuracyRow> rows) {
  AccuracySummary s;
  Picked all, headline;
  std::vector<AccuracyRow> ranked;
  for (const AccuracyRow& r : rows) {
    all.push_back(&r);
    if (in_headline(r)) headline.push_back(&r), ranked.push_back(r);
  }
  s.headline = group("headline", "trust A", headline);
  s.all = group("all", "all rows", all);
  if (rows.empty()) return s;
  add_groups(s.groups, "source", rows, [](const AccuracyRow& r) { return r.source; });
  add_groups(s.groups, "gpu", rows, [](const AccuracyRow& r) { return r.gpu; });
  add_groups(s.groups, "scale", rows, [](const AccuracyRow& r) { return band(r.gpus); });
  add_groups(s.groups, "trust", rows, [](const AccuracyRow& r) { return r.trust; });
  s.order = rank_agreement(rows);
  s.headline_order = rank_agreement(ranked);
  return s;
}

}  // namespace fsdp
