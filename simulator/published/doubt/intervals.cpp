#include "simulator/published/doubt/intervals.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

namespace fsdp {
namespace {

using Picked = std::vector<const DoubtRow*>;
using Deviation = std::optional<double> DoubtRow::*;

struct Weighted {
  double value, weight;
};

// Each group's weights add up to 1.
std::vector<Weighted> weighted(const Picked& rows, Deviation which, const Picked& all) {
  std::map<std::string, double> sizes;
  for (const DoubtRow* r : all)
    if (r->*which) sizes[r->group] += 1;
  std::vector<Weighted> out;
  for (const DoubtRow* r : rows)
    if (r->*which) out.push_back({*(r->*which), 1 / sizes[r->group]});
  std::sort(out.begin(), out.end(), [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  return out;
}

double total_weight(const std::vector<Weighted>& sorted) {
  double sum = 0;
  for (const Weighted& w : sorted) sum += w.weight;
  return sum;
}

double quantile_of(const std::vector<Weighted>& sorted, double q) {
  const double aim = q * total_weight(sorted);
  double sum = 0;
  for (const Weighted& w : sorted)
    if ((sum += w.weight) >= aim) return w.value;
  return sorted.empty() ? 0 : sorted.back().value;
}

DoubtQuantiles quantiles(const std::vector<Weighted>& sorted, double tail) {
  return {quantile_of(sorted, tail), quantile_of(sorted, 0.5), quantile_of(sorted, 1 - tail)};
}

// Of a cause's rows, drawn towards those of all. The prediction itself is always inside.
DoubtQuantiles drawn(const Picked& rows, Deviation which, const Picked& all, double tail, double prior) {
  const DoubtQuantiles pooled = quantiles(weighted(all, which, all), tail);
  const std::vector<Weighted> own = weighted(rows, which, all);
  const double weight = total_weight(own), share = weight / (weight + prior);
  const DoubtQuantiles q = quantiles(own, tail);
  const auto between = [&](double a, double b) { return share * a + (1 - share) * b; };
  return {std::min(0.0, between(q.low, pooled.low)), between(q.median, pooled.median),
          std::max(0.0, between(q.high, pooled.high))};
}

DoubtTable table_of(const Picked& all) {
  DoubtTable table;
  for (int c = 0; c < kDoubtCauses; ++c) {
    Picked rows;
    for (const DoubtRow* r : all)
      if (cause_of(r->facts()) == static_cast<DoubtCause>(c)) rows.push_back(r);
    const auto cause = static_cast<DoubtCause>(c);
    const bool network = cause == DoubtCause::waits || cause == DoubtCause::many_gpus;
    table.step_time[static_cast<std::size_t>(c)] =
        drawn(rows, &DoubtRow::step_time, all, network ? kNetworkTail : kTail, network ? kNetworkPrior : kPrior);
  }
  for (const bool known : {true, false}) {
    Picked rows;
    for (const DoubtRow* r : all)
      if (is_known(r->facts().software) == known) rows.push_back(r);
    table.peak[known ? 0 : 1] = drawn(rows, &DoubtRow::peak, all, kPeakTail, kPeakPrior);
  }
  return table;
}

Picked pointers(std::span<const DoubtRow> rows) {
  Picked out;
  for (const DoubtRow& r : rows) out.push_back(&r);
  return out;
}

// A row with the interval that the other sources' rows give it.
struct HeldOut {
  const DoubtRow* row;
  double low, high;
};
using Ends = std::function<DoubtQuantiles(const DoubtTable&, const Picked& others, const DoubtRow&)>;

std::vector<HeldOut> held_out(std::span<const DoubtRow> rows, Deviation which, const Ends& ends) {
  std::set<std::string> sources;
  for (const DoubtRow& r : rows) sources.insert(r.source);
  std::vector<HeldOut> out;
  for (const std::string& source : sources) {
    Picked others;
    for (const DoubtRow& r : rows)
      if (r.source != source && r.*which) others.push_back(&r);
    const DoubtTable table = table_of(others);
    for (const DoubtRow& r : rows) {
      if (r.source != source || !(r.*which)) continue;
      const DoubtQuantiles q = ends(table, others, r);
      out.push_back({&r, q.low, q.high});
    }
  }
  return out;
}

struct Score {
  std::int64_t rows = 0;
  double coverage = 0, half_width = 0, median_half_width = 0, score = 0;
};

Score scored(const std::vector<HeldOut>& all, Deviation which, const std::function<bool(const DoubtRow&)>& in) {
  constexpr double kMissed = 2 / 0.2;
  std::map<std::string, double> sizes;
  for (const HeldOut& h : all)
    if (in(*h.row)) sizes[h.row->group] += 1;
  Score s;
  double weights = 0;
  std::vector<Weighted> half_widths;
  for (const HeldOut& h : all) {
    if (!in(*h.row)) continue;
    const double x = *(h.row->*which), weight = 1 / sizes[h.row->group];
    ++s.rows, weights += weight;
    s.coverage += weight * (x >= h.low && x <= h.high ? 1 : 0);
    s.half_width += weight * (h.high - h.low) / 2;
    half_widths.push_back({(h.high - h.low) / 2, weight});
    s.score += weight * (h.high - h.low + kMissed * (std::max(0.0, h.low - x) + std::max(0.0, x - h.high)));
  }
  if (weights > 0) s.coverage /= weights, s.half_width /= weights, s.score /= weights;
  std::sort(half_widths.begin(), half_widths.end(),
            [](const Weighted& a, const Weighted& b) { return a.value < b.value; });
  s.median_half_width = quantile_of(half_widths, 0.5);
  return s;
}

std::vector<IntervalQuality> qualities(std::span<const DoubtRow> rows, Deviation which, const Ends& ends) {
  const std::vector<HeldOut> all = held_out(rows, which, ends);
  const auto any = [](const DoubtRow&) { return true; };
  const double covered = scored(all, which, any).coverage;
  // One width for all: of the tails from 1 to 20 % the one that covers most nearly as much.
  std::vector<HeldOut> baseline;
  double nearest = 2;
  for (int percent = 1; percent <= 20; ++percent) {
    auto tried = held_out(rows, which, [&](const DoubtTable&, const Picked& others, const DoubtRow&) {
      return quantiles(weighted(others, which, others), percent / 100.0);
    });
    const double apart = std::abs(scored(tried, which, any).coverage - covered);
    if (apart < nearest) nearest = apart, baseline = std::move(tried);
  }
  const auto many = [](const DoubtRow& r) { return r.ranks > kManyGpus; };
  const auto near = [](const DoubtRow& r) { return r.device_share > kNearLimit; };
  std::vector<IntervalQuality> out;
  const auto add = [&](std::string name, const std::function<bool(const DoubtRow&)>& in) {
    const Score s = scored(all, which, in), b = scored(baseline, which, in);
    if (s.rows > 0)
      out.push_back(
          {std::move(name), s.rows, s.coverage, s.half_width, s.median_half_width, s.score, b.coverage, b.score});
  };
  add("all", any);
  add("more than 128 GPUs", many);
  add("near the limit", near);
  add("the others", [&](const DoubtRow& r) { return !many(r) && !near(r); });
  return out;
}

double rounded(double x) { return std::round(x * 1000) / 1000; }
DoubtQuantiles rounded(const DoubtQuantiles& q) { return {rounded(q.low), rounded(q.median), rounded(q.high)}; }

}  // namespace

std::vector<DoubtRow> doubt_rows(const AccuracyReport& report) {
  std::vector<DoubtRow> out;
  for (const AccuracyRow& r : report.rows) {
    DoubtRow d{.source = r.source, .implementation = r.implementation, .experts = r.experts, .ranks = r.gpus};
    d.group = r.source + "\n" + r.gpu + "\n" + r.model + (r.gpus > kManyGpus ? "\n+" : "");
    d.exposed_share = r.exposed_share.value_or(0);
    if (r.predicted_total_bytes)
      d.device_share = static_cast<double>(*r.predicted_total_bytes) / static_cast<double>(r.device_bytes);
    if (r.predicted_needed_bytes)
      d.needed_share = static_cast<double>(*r.predicted_needed_bytes) / static_cast<double>(r.device_bytes);
    if (const auto e = r.step_time_error()) d.step_time = -std::log1p(*e);
    if (const auto e = r.peak_error()) d.peak = -std::log1p(*e);
    out.push_back(std::move(d));
  }
  for (const FailedRun& r : report.failed) {
    if (!r.predicted_total_bytes) continue;
    DoubtRow d{.source = r.source, .implementation = r.implementation, .ranks = r.gpus};
    d.group = r.source + "\n" + r.gpu + "\n" + r.model;
    d.device_share = static_cast<double>(*r.predicted_total_bytes) / static_cast<double>(r.device_bytes);
    if (r.predicted_needed_bytes)
      d.needed_share = static_cast<double>(*r.predicted_needed_bytes) / static_cast<double>(r.device_bytes);
    d.failed = true;
    out.push_back(std::move(d));
  }
  return out;
}

DoubtTable fit_doubt(std::span<const DoubtRow> rows) {
  DoubtTable table = table_of(pointers(rows));
  for (DoubtQuantiles& q : table.step_time) q = rounded(q);
  for (DoubtQuantiles& q : table.peak) q = rounded(q);
  return table;
}

DoubtQuality doubt_quality(std::span<const DoubtRow> rows) {
  DoubtQuality quality;
  quality.step_time =
      qualities(rows, &DoubtRow::step_time, [](const DoubtTable& table, const Picked&, const DoubtRow& r) {
        return table.step_time[static_cast<std::size_t>(cause_of(r.facts()))];
      });
  quality.peak = qualities(rows, &DoubtRow::peak, [](const DoubtTable& table, const Picked&, const DoubtRow& r) {
    return table.peak[is_known(r.facts().software) ? 0 : 1];
  });
  std::map<std::string, DoubtTable> without;  // by the source that is left out
  for (const DoubtRow& r : rows) {
    if (r.needed_share <= 0) continue;
    if (!without.contains(r.source)) {
      Picked others;
      for (const DoubtRow& o : rows)
        if (o.source != r.source) others.push_back(&o);
      without.emplace(r.source, table_of(others));
    }
    const DoubtQuantiles& q = without.at(r.source).peak[is_known(r.facts().software) ? 0 : 1];
    const double outcome = r.failed ? 1 : 0, chance = chance_above(q, -std::log(r.needed_share)),
                 verdict = r.device_share > 1 ? 1 : 0;
    ++(r.failed ? quality.failed : quality.completed);
    quality.brier += (chance - outcome) * (chance - outcome);
    quality.verdict_brier += (verdict - outcome) * (verdict - outcome);
  }
  const auto judged = static_cast<double>(quality.failed + quality.completed);
  if (judged > 0) quality.brier /= judged, quality.verdict_brier /= judged;
  return quality;
}

}  // namespace fsdp
