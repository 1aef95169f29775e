// How far apart equal GPUs are, measured: `accuracy_gpu_spread_test -s` prints it beside what costs assume.
//
// tests/accuracy/gpu_spread.csv: V100s of TACC's Longhorn, one row per GPU and workload, the median of its runs. From
// hal-uw/blox-pal at da726cab93, aggregated_data/sim/ (PAL, SC24; measured for "Not All GPUs Are Created Equal", SC22):
// products of 25,536 cubed in fp32 on 392 GPUs, at the limit of their power; and 2,000 kernels of PageRank, which wait
// for memory, on 172. Of these 31 lie apart: 28 are all 2.7 to 2.9 % quicker, as if they were of another kind.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "planner/costs.h"
#include "planner/costs/slowest.h"
#include "tests/accuracy/csv_rows.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

// Of each GPU over the median's, sorted.
std::vector<double> times(std::string_view workload) {
  std::vector<double> t;
  for (const CsvRow& row : read_csv_rows("accuracy/gpu_spread.csv"))
    if (row.at("workload") == workload) t.push_back(std::stod(row.at("median_ms")));
  std::sort(t.begin(), t.end());
  const double median = (t[(t.size() - 1) / 2] + t[t.size() / 2]) / 2;
  for (double& x : t) x /= median;
  return t;
}

// Tukey's: further from the middle half than 1.5 times its width.
std::vector<double> without_outliers(const std::vector<double>& t) {
  const double low = t[t.size() / 4], high = t[3 * t.size() / 4], reach = 1.5 * (high - low);
  std::vector<double> kept;
  for (const double x : t)
    if (low - reach <= x && x <= high + reach) kept.push_back(x);
  return kept;
}

double deviation(const std::vector<double>& t) {
  double sum = 0, squares = 0;
  for (const double x : t) sum += x;
  const double mean = sum / static_cast<double>(t.size());
  for (const double x : t) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / static_cast<double>(t.size()));
}

// Of jobs on `ranks` of these GPUs: how much longer than the median's the slowest one takes, on average.
double slowest_of(std::int64_t ranks, const std::vector<double>& t) {
  std::mt19937 random(7);
  constexpr int kJobs = 20'000;
  double sum = 0;
  for (int job = 0; job < kJobs; ++job) {
    double slowest = 0;
    for (std::int64_t r = 0; r < ranks; ++r) slowest = std::max(slowest, t[random() % t.size()]);
    sum += slowest;
  }
  return sum / kJobs - 1;
}

}  // namespace

TEST_CASE("equal GPUs: products differ as the costs assume, what waits for memory does not") {
  const Costs costs;
  const std::vector<double> products = times("sgemm"), usual = without_outliers(products);
  REQUIRE(products.size() == 392);
  MESSAGE(fmt::format("{} GPUs: deviation {:.4f}, {:.4f} without {} outliers; the slowest takes {:.2f}",
                      products.size(), deviation(products), deviation(usual), products.size() - usual.size(),
                      products.back()));
  CHECK(costs.gpu_spread == relative(deviation(usual)).epsilon(0.03));
  for (const std::int64_t ranks : {1, 8, 64, 256}) {
    const double measured = slowest_of(ranks, usual), assumed = 1 / slowest_clock(ranks, costs) - 1;
    MESSAGE(fmt::format("slowest of {}: +{:.2f} %, assumed +{:.2f} %; outliers with it +{:.2f} %", ranks,
                        100 * measured, 100 * assumed, 100 * slowest_of(ranks, products)));
    CHECK(std::abs(measured - assumed) < 0.004);
  }
  const std::vector<double> waiting = times("pagerank"), alike = without_outliers(waiting);
  REQUIRE(waiting.size() == 172);
  CHECK(alike.size() == 141);
  CHECK(deviation(alike) < costs.gpu_spread / 15);
  CHECK(waiting.back() < 1.005);  // none of them is slow
}
