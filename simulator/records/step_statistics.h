// Statistics of a run's step times: where the warm-up ended, the median, how sure it is.
//
// All of them are order statistics, because disturbances go in one direction: a few steps take far longer (the machine
// did something else), and no step takes less than its work.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace fsdp {

// Fewest steps that tell whether their times have settled, and fewest independent ones whose median has an interval.
inline constexpr std::size_t kFewestToSettle = 8, kFewestForInterval = 6;

// Linear between order statistics (numpy's default). 0 of an empty list.
[[nodiscard]] double quantile(std::span<const double> values, double q);

// Neighbouring steps resemble each other, because a disturbance lasts for several. So n steps are worth fewer
// independent ones: n (1 - r) / (1 + r) with r the correlation between the ranks (positions in the sorted list)
// of each step and the next, not below 0.
[[nodiscard]] double independent_steps(std::span<const double> seconds);

// 95 % confidence interval of the median: the order statistics at n/2 -+ 0.98 sqrt(n) (normal approximation of the
// binomial), n the independent steps. None below kFewestForInterval: then the smallest and the largest do not reach 95
// %.
struct Interval {
  double low = 0, high = 0;
  friend bool operator==(const Interval&, const Interval&) = default;
};
[[nodiscard]] std::optional<Interval> median_interval(std::span<const double> seconds);
// Half of it over the median; infinite where there is none.
[[nodiscard]] double median_uncertainty(std::span<const double> seconds);

// How many leading steps are warm-up: the fewest of 0, 1, 2, 3, 4, 6, 8, 12, 16, ... such that the median of the first
// quarter of the rest (at least 3 steps) lies inside the interval of the median of what follows that quarter, or within
// 1 % of it. None: not within half of the steps, or fewer than kFewestToSettle of them.
[[nodiscard]] std::optional<std::size_t> settled_after(std::span<const double> seconds);

// True if the steps after the first `warmup`, settled_after(seconds), tell enough to stop: they are kFewestToSettle or
// more, so that their own settled_after is 0, and their median is known to `uncertainty` (a fraction of it).
[[nodiscard]] bool known_after(std::size_t warmup, std::span<const double> seconds, double uncertainty);

}  // namespace fsdp
