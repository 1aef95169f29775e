// The slowest of n ranks: order statistics against closed forms and tables, sampling against order statistics.
#include "simulator/engine/jitter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "planner/breakdown.h"
#include "planner/costs/slowest.h"
#include "simulator/records/prediction.h"
#include "simulator/records/step_time.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

Breakdown breakdown(double compute, double exposed) {
  Breakdown b;
  b.compute = Seconds(compute * 0.7);
  b.recompute = Seconds(compute * 0.2);
  b.optimizer = Seconds(compute * 0.06);
  b.copies = Seconds(compute * 0.04);
  b.exposed_all_gather = Seconds(exposed);
  return b;
}

// Of a step all of whose compute is as far apart as gpu_spread says.
StepTimeDistribution distribution(Seconds step, const Breakdown& b, std::int64_t ranks, const Costs& costs,
                                  std::optional<std::uint64_t> seed = {}) {
  const double compute = (b.compute + b.recompute + b.copies + b.optimizer).count(),
               slowest = compute * costs.gpu_spread * maximum_mean(static_cast<double>(ranks));
  return step_time_distribution(step, Seconds(step.count() - slowest), b, ranks, costs, seed);
}

}  // namespace

TEST_CASE("order statistics against a Monte Carlo of clusters and steps") {
  Costs costs;
  costs.gpu_spread = 0.02;
  costs.step_jitter = 0.01;
  const std::int64_t ranks = 64;
  const StepTimeDistribution d = distribution(Seconds(1.25), breakdown(1.0, 0.25), ranks, costs);
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  std::vector<double> times(40'000);
  for (double& t : times) {
    double slowest = -1;
    for (int r = 0; r < ranks; ++r) slowest = std::max(slowest, normal(random) * 0.02 + normal(random) * 0.01);
    t = 0.25 + 1.0 * (1 + slowest - 0.02 * 2.34373);  // the prediction has the slowest of 64 GPUs in it (Harter 1961)
  }
  std::sort(times.begin(), times.end());
  double sum = 0;
  for (const double t : times) sum += t;
  const auto at = [&](double q) { return times[static_cast<std::size_t>(q * static_cast<double>(times.size()))]; };
  CHECK(d.mean.count() == relative(sum / static_cast<double>(times.size())).epsilon(2e-4));
  CHECK(d.p50.count() == relative(at(0.50)).epsilon(3e-4));
  CHECK(d.p95.count() == relative(at(0.95)).epsilon(5e-4));
  CHECK(d.p99.count() == relative(at(0.99)).epsilon(1e-3));
  CHECK(!d.seed);
}

TEST_CASE("one cluster: its slow GPUs stay, its steps are sampled") {
  Costs costs;
  costs.gpu_spread = 0;
  costs.step_jitter = 0.01;
  // Without static spread every cluster is the same: sampling meets the order statistics.
  const Breakdown where = breakdown(2.0, 0.5);
  const StepTimeDistribution any = distribution(Seconds(2.5), where, 128, costs);
  const StepTimeDistribution one = distribution(Seconds(2.5), where, 128, costs, 11);
  CHECK(one.mean.count() == relative(any.mean.count()).epsilon(2e-4));
  CHECK(one.p50.count() == relative(any.p50.count()).epsilon(3e-4));
  CHECK(one.p95.count() == relative(any.p95.count()).epsilon(5e-4));
  CHECK(one.p99.count() == relative(any.p99.count()).epsilon(1e-3));
  CHECK(one.samples >= 1000);
  CHECK(one == distribution(Seconds(2.5), where, 128, costs, 11));  // the seed decides
  // Without jitter all its steps are alike; over clusters their mean is the order statistic's.
  costs.gpu_spread = 0.02;
  costs.step_jitter = 0;
  double sum = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const StepTimeDistribution d = distribution(Seconds(2.5), where, 128, costs, seed);
    CHECK(d.p50 == d.p99);
    sum += d.mean.count();
  }
  const StepTimeDistribution clusters = distribution(Seconds(2.5), where, 128, costs);
  CHECK(sum / 400 == relative(clusters.mean.count()).epsilon(1e-3));
}

TEST_CASE("laws: quantiles in order, more ranks jitter more, without jitter the mean is the prediction") {
  Costs costs;
  double before = 0;
  for (const std::int64_t ranks : {1, 2, 8, 512, 100'000}) {
    for (const std::optional<std::uint64_t> seed : {std::optional<std::uint64_t>{}, {std::uint64_t{5}}}) {
      const StepTimeDistribution d = distribution(Seconds(1), breakdown(0.8, 0.2), ranks, costs, seed);
      CHECK(d.p50 <= d.p95);
      CHECK(d.p95 <= d.p99);
    }
    const double mean = distribution(Seconds(1), breakdown(0.8, 0.2), ranks, costs).mean.count();
    CHECK(mean > before);
    before = mean;
  }
  costs.step_jitter = 0;
  CHECK(distribution(Seconds(1), breakdown(0.8, 0.2), 64, costs).mean.count() == relative(1));
  costs.gpu_spread = 0;
  CHECK(distribution(Seconds(1), breakdown(0.8, 0.2), 64, costs).p99.count() == relative(1));
  CHECK(distribution(Seconds(1), breakdown(0.8, 0.2), 64, costs, 1).p99.count() == relative(1));
}

TEST_CASE("predictions keep the distribution of step times on disk") {
  Prediction p;
  const StepTimeDistribution over_clusters{Seconds(1.1), Seconds(1.0), Seconds(1.2), Seconds(1.3), {}, 0};
  for (const auto& d : {std::optional<StepTimeDistribution>{},
                        {over_clusters},
                        {StepTimeDistribution{Seconds(1), {}, {}, {}, 7, 2000}}}) {
    p.step_time_distribution = d;
    CHECK(parse_prediction(to_json_text(p), "p.json").step_time_distribution == d);
  }
}

TEST_CASE("what the GPUs' spread adds is what the prediction holds of it: products alone, and nothing that is hidden") {
  Costs costs;
  costs.step_jitter = 0;
  const StepTimeDistribution d = step_time_distribution(Seconds(1.25), Seconds(1.22), breakdown(1.0, 0.25), 64, costs);
  CHECK(d.mean.count() == relative(1.25).epsilon(1e-9));
  CHECK(d.p99.count() - 1.22 == relative(0.03 / maximum_mean(64) * maximum_quantile(64, 0.99)));
  double fastest = 2;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    fastest = std::min(
        fastest,
        step_time_distribution(Seconds(1.25), Seconds(1.22), breakdown(1.0, 0.25), 64, costs, seed).mean.count());
  CHECK(fastest > 1.22);  // no cluster of 64 GPUs is quicker than one of GPUs alike
}
