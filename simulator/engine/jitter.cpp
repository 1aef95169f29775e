#include "simulator/engine/jitter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "planner/costs/slowest.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostDraws = 20'000'000, kFewestSteps = 1000, kMostSteps = 20'000;

// Standard normals, the same on every platform: std::normal_distribution is not.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : bits_(seed) {}
  double operator()() {
    if (have_) {
      have_ = false;
      return other_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * std::numbers::pi * uniform();
    other_ = radius * std::sin(angle);
    have_ = true;
    return radius * std::cos(angle);
  }

 private:
  double uniform() { return (static_cast<double>(bits_() >> 11) + 0.5) * 0x1.0p-53; }  // never 0
  std::mt19937_64 bits_;
  double other_ = 0;
  bool have_ = false;
};

// The maxima of s + j over the ranks of one cluster, step by step, sorted. In seconds, as the standard deviations.
std::vector<double> sample_steps(std::int64_t ranks, double gpus, double steps_apart, std::uint64_t seed) {
  Normal normal(seed);
  std::vector<double> spread(static_cast<std::size_t>(ranks));
  for (double& s : spread) s = normal() * gpus;
  const double slowest = *std::max_element(spread.begin(), spread.end());
  // A rank this much faster than the slowest never decides a step.
  std::erase_if(spread, [&](double s) { return s < slowest - 8 * steps_apart; });
  const auto contenders = static_cast<std::int64_t>(spread.size());
  const std::int64_t steps = std::clamp(kMostDraws / contenders, kFewestSteps, kMostSteps);
  std::vector<double> maxima(static_cast<std::size_t>(steps));
  for (double& m : maxima) {
    m = std::numeric_limits<double>::lowest();
    for (const double s : spread) m = std::max(m, s + normal() * steps_apart);
  }
  std::sort(maxima.begin(), maxima.end());
  return maxima;
}

}  // namespace

StepTimeDistribution step_time_distribution(Seconds step_time, Seconds of_equal_gpus, const Breakdown& where,
                                            std::int64_t ranks, const Costs& costs, std::optional<std::uint64_t> seed) {
  const double compute =
      std::min(step_time.count(), (where.compute + where.recompute + where.copies + where.optimizer).count());
  const double n = static_cast<double>(std::max<std::int64_t>(1, ranks)), slowest = maximum_mean(n);
  const double gpus = ranks > 1 ? (step_time - of_equal_gpus).count() / slowest : compute * costs.gpu_spread,
               steps = compute * costs.step_jitter;
  const auto at = [&](double longer) { return Seconds(of_equal_gpus.count() + longer); };
  StepTimeDistribution d;
  if (!seed) {
    const double sigma = std::hypot(gpus, steps);
    d.mean = at(sigma * slowest);
    d.p50 = at(sigma * maximum_quantile(n, 0.50));
    d.p95 = at(sigma * maximum_quantile(n, 0.95));
    d.p99 = at(sigma * maximum_quantile(n, 0.99));
    return d;
  }
  const std::vector<double> maxima = sample_steps(std::max<std::int64_t>(1, ranks), gpus, steps, *seed);
  double sum = 0;
  for (const double m : maxima) sum += m;
  const auto quantile = [&](double q) {
    return maxima[static_cast<std::size_t>(q * static_cast<double>(maxima.size() - 1))];
  };
  d.mean = at(sum / static_cast<double>(maxima.size()));
  d.p50 = at(quantile(0.50));
  d.p95 = at(quantile(0.95));
  d.p99 = at(quantile(0.99));
  d.seed = seed;
  d.samples = static_cast<std::int64_t>(maxima.size());
  return d;
}

}  // namespace fsdp
