// The solver against problems whose answers are known in closed form, and against noise and wild rows.
#include "simulator/published/fit.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "models/input/error.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

// Rows t_i = a / x + b / y: time of two kinds of work at two efficiencies.
struct Work {
  double a, b, seconds;
};

FitBlock block_of(std::vector<Work> rows, std::vector<int> variables) {
  FitBlock block;
  block.variables = std::move(variables);
  block.rows = rows.size();
  block.residuals = [rows = std::move(rows)](std::span<const double> x) {
    std::vector<double> r;
    for (const Work& w : rows) r.push_back(std::log((w.a / x[0] + w.b / x[1]) / w.seconds));
    return r;
  };
  return block;
}

std::vector<Work> runs(double x, double y, int count, double noise, double wild, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<Work> rows;
  for (int i = 0; i < count; ++i) {
    const double a = 0.2 + uniform(random), b = 0.2 + uniform(random);
    double seconds = (a / x + b / y) * std::exp(noise * normal(random));
    if (uniform(random) < wild) seconds *= uniform(random) < 0.5 ? 2.5 : 0.4;
    rows.push_back({a, b, seconds});
  }
  return rows;
}

// d log(a/x + b/y) / d log x = -(a/x) / (a/x + b/y).
FitBlock with_derivatives(FitBlock block, const std::vector<Work>& rows, double x, double y) {
  for (const Work& w : rows) {
    const double a = w.a / x, b = w.b / y;
    block.derivatives.insert(block.derivatives.end(), {-a / (a + b), -b / (a + b)});
  }
  return block;
}

FitVariable efficiency(const char* name, double start = 0.7, double upper = 1) {
  return {name, start, 0.2, upper, false};
}

}  // namespace

TEST_CASE("exact rows give the constants back exactly") {
  const FitResult r = fit({{efficiency("x"), efficiency("y")}, {}, {block_of(runs(0.55, 0.83, 30, 0, 0, 1), {0, 1})}},
                          {.tolerance = 1e-9});
  CHECK(r.converged);
  CHECK(r.values[0] == doctest::Approx(0.55).epsilon(1e-6));
  CHECK(r.values[1] == doctest::Approx(0.83).epsilon(1e-6));
  CHECK_FALSE(r.at_bound[0]);
}

TEST_CASE("1 % of noise and 5 % of wild rows move the constants by less than 2 %, and the stated error covers that") {
  int covered = 0;
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    const FitResult r =
        fit({{efficiency("x"), efficiency("y")}, {}, {block_of(runs(0.55, 0.83, 100, 0.01, 0.05, seed), {0, 1})}});
    CHECK(r.converged);
    CHECK(std::abs(std::log(r.values[0] / 0.55)) < 0.02);
    CHECK(std::abs(std::log(r.values[1] / 0.83)) < 0.02);
    covered += std::abs(std::log(r.values[0] / 0.55)) < 2 * r.standard_errors[0] ? 1 : 0;
    covered += std::abs(std::log(r.values[1] / 0.83)) < 2 * r.standard_errors[1] ? 1 : 0;
  }
  CHECK(covered >= 34);  // of 40; two standard errors should cover 38
}

TEST_CASE("a mean under a prior: the closed form") {
  // r = x - log 2 once per row with spread s: posterior mean of n rows at log 2 and a prior at 0 of width w is
  // log 2 * (n / s^2) / (n / s^2 + 1 / w^2), its variance 1 / (n / s^2 + 1 / w^2). Small enough for Huber: |r| < 1.345
  // s by choice of s.
  FitBlock block;
  block.variables = {0};
  block.rows = 4;
  block.residuals = [](std::span<const double> x) {
    const double d = std::log(x[0]) - std::log(1.02);
    return std::vector<double>{d + 0.03, d - 0.03, d + 0.03, d - 0.03};
  };
  const FitResult r =
      fit({{{"x", 1, 0.1, 10, false}}, {{0, std::nullopt, 1, 0.05}}, {block}}, {.noise = 0.1, .tolerance = 1e-10});
  const double data = 4 / (0.1 * 0.1), prior = 1 / (0.05 * 0.05);
  CHECK(std::log(r.values[0]) == doctest::Approx(std::log(1.02) * data / (data + prior)).epsilon(1e-6));
  CHECK(r.standard_errors[0] == doctest::Approx(1 / std::sqrt(data + prior)).epsilon(1e-6));
}

TEST_CASE("a constant at its bound stays there and the other one is as if it had been given") {
  // Truth x = 0.9, bound 0.8: y must make up for it.
  std::vector<Work> rows = runs(0.9, 0.5, 50, 0, 0, 3);
  const FitResult r =
      fit({{efficiency("x", 0.7, 0.8), efficiency("y")}, {}, {block_of(rows, {0, 1})}}, {.tolerance = 1e-8});
  CHECK(r.at_bound[0]);
  CHECK(r.values[0] == 0.8);
  CHECK_FALSE(r.at_bound[1]);
  CHECK(r.values[1] > 0.5);
  const FitResult alone =
      fit({{{"x", 0.8, 0.8, 0.8, false}, efficiency("y")}, {}, {block_of(rows, {0, 1})}}, {.tolerance = 1e-8});
  CHECK(alone.values[1] == doctest::Approx(r.values[1]).epsilon(1e-5));
}

TEST_CASE("platforms share a pool: many rows stand for themselves, few are drawn to it, none sits on it") {
  // Variables: pool x y, then platforms A (200 rows), B (1 row), C (no rows), each tied to the pool by 10 %.
  FitProblem p;
  for (const char* name : {"pool x", "pool y", "A x", "A y", "B x", "B y", "C x", "C y"})
    p.variables.push_back(efficiency(name));
  for (int v = 0; v < 2; ++v) p.priors.push_back({v, std::nullopt, 0.7, 0.3});
  for (int v = 2; v < 8; ++v) p.priors.push_back({v, v % 2, 1, 0.1});
  p.blocks = {block_of(runs(0.6, 0.8, 200, 0.01, 0, 5), {2, 3}), block_of(runs(0.5, 0.5, 1, 0, 0, 6), {4, 5}),
              block_of({}, {6, 7})};
  const FitResult r = fit(p);
  CHECK(r.values[2] == doctest::Approx(0.6).epsilon(0.01));
  CHECK(r.values[3] == doctest::Approx(0.8).epsilon(0.01));
  CHECK(r.values[4] < r.values[0]);
  CHECK(r.values[5] < r.values[1]);
  CHECK(r.values[5] > 0.5);
  CHECK(r.values[6] == doctest::Approx(r.values[0]).epsilon(1e-4));
  CHECK(r.standard_errors[6] > r.standard_errors[4]);
  CHECK(r.standard_errors[4] > r.standard_errors[2]);
}

TEST_CASE("the same rows twice give the same constants, with less doubt") {
  std::vector<Work> rows = runs(0.55, 0.83, 40, 0.02, 0, 9), twice = rows;
  twice.insert(twice.end(), rows.begin(), rows.end());
  const FitResult once = fit({{efficiency("x"), efficiency("y")}, {}, {block_of(rows, {0, 1})}}, {.tolerance = 1e-8});
  const FitResult two = fit({{efficiency("x"), efficiency("y")}, {}, {block_of(twice, {0, 1})}}, {.tolerance = 1e-8});
  CHECK(two.values[0] == doctest::Approx(once.values[0]).epsilon(1e-3));
  CHECK(two.standard_errors[0] < 0.8 * once.standard_errors[0]);
  FitBlock half = block_of(twice, {0, 1});
  half.weights.assign(twice.size(), 0.5);
  const FitResult weighted = fit({{efficiency("x"), efficiency("y")}, {}, {half}}, {.tolerance = 1e-8});
  CHECK(weighted.standard_errors[0] == doctest::Approx(once.standard_errors[0]).epsilon(0.05));
}

TEST_CASE("derivatives that are given, and kept, lead to the same place") {
  const std::vector<Work> rows = runs(0.55, 0.83, 60, 0.01, 0.05, 11);
  const FitResult plain = fit({{efficiency("x"), efficiency("y")}, {}, {block_of(rows, {0, 1})}}, {.tolerance = 1e-7});
  FitOptions keep;
  keep.tolerance = 1e-7;
  keep.keep_derivatives = 1000;
  keep.iterations = 100;
  const FitResult given =
      fit({{efficiency("x"), efficiency("y")}, {}, {with_derivatives(block_of(rows, {0, 1}), rows, 0.6, 0.8)}}, keep);
  CHECK(given.values[0] == doctest::Approx(plain.values[0]).epsilon(2e-3));
  CHECK(given.values[1] == doctest::Approx(plain.values[1]).epsilon(2e-3));
  FitBlock wrong = block_of(rows, {0, 1});
  wrong.derivatives = {1};
  CHECK_THROWS_AS((void)fit({{efficiency("x"), efficiency("y")}, {}, {wrong}}), InputError);
}

TEST_CASE("a constant that rows feel only once it is far away is found by the search") {
  // max(1, 0.3 / x): a link hidden behind one second of work unless it is slower than 0.3. The truth is 0.15: two
  // seconds.
  const auto hidden = [](bool search) {
    FitBlock b{{0},
               8,
               {},
               [](std::span<const double> x) {
                 std::vector<double> r;
                 for (int i = 0; i < 8; ++i)
                   r.push_back(std::log(std::max(1.0, 0.3 / x[0]) / 2 * (1 + 0.01 * (i % 3 - 1))));
                 return r;
               },
               {}};
    return fit({{{"link", 0.9, 0.1, 1, search}}, {{0, std::nullopt, 0.9, 0.5}}, {b}}).values[0];
  };
  CHECK(hidden(false) == doctest::Approx(0.9));
  CHECK(hidden(true) == doctest::Approx(0.15).epsilon(0.02));
}

TEST_CASE("nothing to fit, and nonsense") {
  CHECK(fit({}).values.empty());
  const FitResult prior_only = fit({{efficiency("x", 0.7)}, {{0, std::nullopt, 0.5, 0.1}}, {}});
  CHECK(prior_only.values[0] == doctest::Approx(0.5).epsilon(1e-3));
  CHECK_THROWS_AS((void)fit({{efficiency("x", 2)}, {}, {}}), InputError);
  CHECK_THROWS_AS((void)fit({{{"x", 1, 0, 1, false}}, {}, {}}), InputError);
  CHECK_THROWS_AS((void)fit({{efficiency("x")}, {{1, std::nullopt, 1, 1}}, {}}), InputError);
  CHECK_THROWS_AS((void)fit({{efficiency("x")}, {{0, std::nullopt, 1, 0}}, {}}), InputError);
  FitBlock bad{{0}, 1, {}, [](std::span<const double>) { return std::vector<double>{std::nan("")}; }, {}};
  CHECK_THROWS_WITH_AS((void)fit({{efficiency("x")}, {}, {bad}}), doctest::Contains("not finite"), InputError);
  bad.residuals = [](std::span<const double>) { return std::vector<double>{}; };
  CHECK_THROWS_AS((void)fit({{efficiency("x")}, {}, {bad}}), InputError);
}

TEST_CASE("a block that becomes infinite away from the start is stepped around") {
  FitBlock cliff{
      {0},
      1,
      {},
      [](std::span<const double> x) {
        return std::vector<double>{x[0] > 0.8 ? std::numeric_limits<double>::infinity() : std::log(x[0] / 0.79)};
      },
      {}};
  const FitResult r = fit({{{"x", 0.3, 0.1, 1, false}}, {}, {cliff}});
  CHECK(r.values[0] <= 0.8);
  CHECK(r.values[0] > 0.7);
}
