// What is said of step times, against numbers worked out by hand and against simulated runs whose truth is known.
#include "simulator/records/step_statistics.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "tests/support/relative.h"

using namespace fsdp;

namespace {

std::vector<double> steps(std::size_t n, double seconds, double spread, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, spread);
  std::vector<double> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back(seconds * std::exp(normal(random)));
  return all;
}

}  // namespace

TEST_CASE("quantiles lie between order statistics") {
  CHECK(quantile(std::vector<double>{}, 0.5) == 0);
  CHECK(quantile(std::vector<double>{3}, 0.9) == 3);
  CHECK(quantile(std::vector<double>{4, 1, 3, 2}, 0.5) == relative(2.5));
  CHECK(quantile(std::vector<double>{4, 1, 3, 2, 5}, 0.1) == relative(1.4));
}

TEST_CASE("steps that resemble their neighbours count for less") {
  const std::vector<double> alternating = {1, 9, 2, 8, 3, 7, 4, 6};
  CHECK(independent_steps(alternating) == relative(8));  // the correlation is negative, and taken as none
  // Ranks 0..9 in order: sum (r - 4.5)^2 = 82.5, sum of neighbours' products = 57.75: r = 0.7, 10 * 0.3 / 1.7.
  const std::vector<double> drifting = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CHECK(independent_steps(drifting) == relative(10 * 0.3 / 1.7));
  CHECK_FALSE(median_interval(drifting).has_value());
  CHECK(std::isinf(median_uncertainty(drifting)));
  CHECK(independent_steps(std::vector<double>(7, 2.0)) == relative(7));  // all equal
}

TEST_CASE("the interval of the median holds the median, and 95 % of the time the truth") {
  CHECK_FALSE(median_interval(std::vector<double>{1, 2, 1, 2, 1}).has_value());
  const auto flat = median_interval(std::vector<double>(20, 3.0));
  REQUIRE(flat.has_value());
  CHECK(*flat == Interval{3, 3});
  int holds = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    const std::vector<double> run = steps(41, 0.1, 0.2, seed);
    const auto interval = median_interval(run);
    REQUIRE(interval.has_value());
    CHECK(interval->low <= quantile(run, 0.5));
    CHECK(interval->high >= quantile(run, 0.5));
    holds += interval->low <= 0.1 && 0.1 <= interval->high ? 1 : 0;
  }
  CHECK(holds >= 370);  // 380 expected of 400
  CHECK(holds <= 399);
  // Ten times the steps: about a third of the width.
  CHECK(median_uncertainty(steps(400, 1, 0.2, 1)) < 0.6 * median_uncertainty(steps(40, 1, 0.2, 1)));
}

TEST_CASE("a run is known once as many steps follow its warm-up as tell that they have settled") {
  std::vector<double> run = {9, 9, 9};
  for (std::size_t steady = 5; steady < 20; ++steady) {
    run.resize(3);
    run.resize(3 + steady, 1.0);
    const auto settled = settled_after(run);
    REQUIRE(settled.has_value());
    CHECK(*settled > 0);
    const bool known = known_after(*settled, run, 9.0);
    CHECK(known == (run.size() - *settled >= kFewestToSettle));
    if (known) CHECK(settled_after(std::span(run).subspan(*settled)) == std::size_t{0});
  }
  CHECK_FALSE(known_after(30, run, 9.0));
  const std::vector<double> noisy = steps(40, 1, 0.2, 1);
  CHECK_FALSE(known_after(0, noisy, 1e-6));
}

TEST_CASE("warm-up ends where the median settles") {
  CHECK_FALSE(settled_after(std::vector<double>(7, 1.0)).has_value());
  CHECK(settled_after(std::vector<double>(8, 1.0)) == std::size_t{0});
  std::vector<double> run = {9, 4, 2.5, 1.8, 1.3, 1.1};
  const std::vector<double> steady = steps(40, 1, 0.01, 3);
  run.insert(run.end(), steady.begin(), steady.end());
  const auto settled = settled_after(run);
  REQUIRE(settled.has_value());
  // What a median of three can still hold of the warm-up is at most one step of it ... and the median of all does not
  // show it.
  CHECK(*settled <= 8);
  CHECK(std::abs(quantile(std::span(run).subspan(*settled), 0.5) - 1) < 0.01);
  // One slow step is no warm-up.
  std::vector<double> hiccup = steps(40, 1, 0.01, 5);
  hiccup[2] = 7;
  CHECK(settled_after(hiccup) == std::size_t{0});
  // Falling to the end: never.
  std::vector<double> falling;
  for (int i = 0; i < 40; ++i) falling.push_back(std::pow(0.9, i));
  CHECK_FALSE(settled_after(falling).has_value());
}
