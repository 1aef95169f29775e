#include "planner/costs/slowest.h"

#include <cmath>
#include <numbers>

namespace fsdp {
namespace {

constexpr double kFarthest = 12;  // standard deviations beyond which a normal is not followed

double upper_tail(double x) { return 0.5 * std::erfc(x / std::numbers::sqrt2); }
// Phi(x)^n without losing the tail.
double power_of_normal(double x, double n) { return std::exp(n * std::log1p(-upper_tail(x))); }

}  // namespace

// The integral of 1 - F over the positive half less that of F over the negative one: half of that of an even function
// over the line, for which the trapezoidal rule converges exponentially.
double maximum_mean(double n) {
  constexpr int kPieces = 120;
  constexpr double kStep = kFarthest / kPieces;
  double sum = (1 - 2 * power_of_normal(0, n)) / 2;
  for (int i = 1; i <= kPieces; ++i) {
    const double x = i * kStep;
    sum += 1 - power_of_normal(x, n) - power_of_normal(-x, n);
  }
  return sum * kStep;
}

double maximum_quantile(double n, double probability) {
  const double tail = -std::expm1(std::log(probability) / n);  // of one: 1 - probability^(1/n)
  double low = -kFarthest, high = kFarthest;
  for (int i = 0; i < 80; ++i) {
    const double middle = (low + high) / 2;
    (upper_tail(middle) > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

double slowest_clock(std::int64_t ranks, const Costs& costs) {
  if (ranks <= 1 || costs.gpu_spread <= 0) return 1;
  return 1 / (1 + costs.gpu_spread * maximum_mean(static_cast<double>(ranks)));
}

}  // namespace fsdp
