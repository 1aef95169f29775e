#include "simulator/records/step_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace fsdp {

namespace {

constexpr std::size_t kFewestInQuarter = 3;
constexpr double kSame = 0.01;  // medians this close are the same for every use of a step time

// Positions in the sorted list; equal values share the mean of theirs.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t j = i;
    while (j < order.size() && values[order[j]] == values[order[i]]) ++j;
    for (std::size_t k = i; k < j; ++k) ranks[order[k]] = 0.5 * static_cast<double>(i + j - 1);
    i = j;
  }
  return ranks;
}

}  // namespace

double quantile(std::span<const double> values, double q) {
  if (values.empty()) return 0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (position - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double independent_steps(std::span<const double> seconds) {
  const auto n = static_cast<double>(seconds.size());
  if (seconds.size() < 3) return n;
  const std::vector<double> r = ranks_of(seconds);
  const double mean = (n - 1) / 2;
  double with_next = 0, all = 0;
  for (std::size_t i = 0; i < r.size(); ++i) {
    all += (r[i] - mean) * (r[i] - mean);
    if (i + 1 < r.size()) with_next += (r[i] - mean) * (r[i + 1] - mean);
  }
  const double correlation = all > 0 ? std::clamp(with_next / all, 0.0, 0.99) : 0;
  return n * (1 - correlation) / (1 + correlation);
}

std::optional<Interval> median_interval(std::span<const double> seconds) {
  const double n = static_cast<double>(seconds.size()), independent = independent_steps(seconds);
  if (seconds.size() < kFewestForInterval || independent < static_cast<double>(kFewestForInterval)) return std::nullopt;
  const double half = 0.98 / std::sqrt(independent);  // 1.96 sqrt(1/4), as a fraction of the steps
  std::vector<double> sorted(seconds.begin(), seconds.end());
  std::sort(sorted.begin(), sorted.end());
  const double low = std::floor(n * (0.5 - half)), high = std::ceil(n * (0.5 + half));
  const auto at = [&](double i) { return sorted[static_cast<std::size_t>(std::clamp(i, 0.0, n - 1))]; };
  return Interval{at(low - 1), at(high)};
}

double median_uncertainty(std::span<const double> seconds) {
  const auto interval = median_interval(seconds);
  const double median = quantile(seconds, 0.5);
  if (!interval || median <= 0) return std::numeric_limits<double>::infinity();
  return 0.5 * (interval->high - interval->low) / median;
}

std::optional<std::size_t> settled_after(std::span<const double> seconds) {
  if (seconds.size() < kFewestToSettle) return std::nullopt;
  for (std::size_t d = 0, stride = 1; d <= seconds.size() / 2; d += stride) {
    const auto rest = seconds.subspan(d);
    const std::size_t quarter = std::max(kFewestInQuarter, rest.size() / 4);
    if (quarter >= rest.size()) break;
    const double early = quantile(rest.first(quarter), 0.5), late = quantile(rest.subspan(quarter), 0.5);
    const auto interval = median_interval(rest.subspan(quarter));
    if (std::abs(early - late) <= kSame * late || (interval && early >= interval->low && early <= interval->high))
      return d;
    if (d >= 4 && (d & (d - 1)) == 0) stride = d / 2;
  }
  return std::nullopt;
}

bool known_after(std::size_t warmup, std::span<const double> seconds, double uncertainty) {
  return seconds.size() >= warmup + kFewestToSettle && median_uncertainty(seconds.subspan(warmup)) <= uncertainty;
}

}  // namespace fsdp
