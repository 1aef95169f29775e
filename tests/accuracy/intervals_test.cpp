// How sure predictions are: the compiled-in constants are those of the published rows, and 80 % intervals hold what
// they held when each source is predicted by all others.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "simulator/published/doubt/intervals.h"

using namespace fsdp;

// The whole files take minutes under sanitizers.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

const std::vector<DoubtRow>& rows() {
  static const std::vector<DoubtRow> kRows = [] {
    AccuracyReport all;
    for (const char* name : {"published_runs.csv", "published_runs_2.csv"}) {
      std::ifstream file(std::string(FSDP_TESTS_DIR) + "/accuracy/" + name, std::ios::binary);
      AccuracyOptions options;
      options.every_peak = true;
      all = joined(std::move(all), accuracy_of(file, name, datasheet_prices(), options));
    }
    return doubt_rows(all);
  }();
  return kRows;
}

const IntervalQuality& of(const std::vector<IntervalQuality>& all, std::string_view name) {
  const auto at = std::find_if(all.begin(), all.end(), [&](const IntervalQuality& q) { return q.name == name; });
  REQUIRE(at != all.end());
  MESSAGE(fmt::format(
      "{}: {} rows, {:.3f} inside, half-width {:.3f} (median {:.3f}), score {:.3f} (one width: {:.3f}, {:.3f})", name,
      at->rows, at->coverage, at->half_width, at->median_half_width, at->score, at->baseline_coverage,
      at->baseline_score));
  return *at;
}

std::string text(const DoubtQuantiles& q) { return fmt::format("{{{:.3f}, {:.3f}, {:.3f}}}", q.low, q.median, q.high); }

}  // namespace

TEST_CASE("the constants of intervals are those that the published rows give") {
  const DoubtTable fitted = fit_doubt(rows());
  const auto equal = [](const DoubtQuantiles& a, const DoubtQuantiles& b) {
    return std::abs(a.low - b.low) < 1e-6 && std::abs(a.median - b.median) < 1e-6 && std::abs(a.high - b.high) < 1e-6;
  };
  for (std::size_t c = 0; c < fitted.step_time.size(); ++c)
    CHECK_MESSAGE(equal(fitted.step_time[c], doubt_table().step_time[c]), name(static_cast<DoubtCause>(c))
                                                                              << ": now " << text(fitted.step_time[c]));
  for (std::size_t k = 0; k < fitted.peak.size(); ++k)
    CHECK_MESSAGE(equal(fitted.peak[k], doubt_table().peak[k]), "peak " << k << ": now " << text(fitted.peak[k]));
}

TEST_CASE("80 % intervals hold 75 to 85 % of sources that they were not made from, and beat one width for all") {
  const DoubtQuality q = doubt_quality(rows());
  const IntervalQuality &all = of(q.step_time, "all"), &many = of(q.step_time, "more than 128 GPUs"),
                        &near = of(q.step_time, "near the limit"), &peak = of(q.peak, "all");
  CHECK(all.rows >= 708);
  CHECK(all.coverage > 0.75);
  CHECK(all.coverage < 0.85);
  // 0.362 and near the limit 0.257 until prime-rl's experts in turn could be predicted: six rows more, one 35 % too
  // fast.
  CHECK(all.score < 0.3822);
  CHECK(all.median_half_width < 0.0715);
  CHECK(all.score < all.baseline_score);
  CHECK(many.coverage > 0.75);
  CHECK(many.coverage < 0.85);
  // 0.750 until second rounds ran at the clock's ceiling: those rows' errors fell, unevenly. 0.753 until runs of
  // experts made two groups more, on 8 GPUs, whose small errors narrow the intervals of all. 0.763 until those of
  // Mosaic's runs fell, which did the same, and 0.771 until they fell again, from 6.2 to 3.3 %. That of all (0.365) and
  // this one (0.772) until products waited for the slowest GPU: errors on A100 fell, those of large jobs on MareNostrum
  // rose, and tails became those that 80 % says. 0.821 until second rounds became shorter: medians moved.
  CHECK(many.score < 0.8075);
  CHECK(many.score < many.baseline_score);
  CHECK(near.coverage > 0.75);
  CHECK(near.coverage < 0.85);
  CHECK(near.score < 0.2658);
  CHECK(peak.coverage > 0.75);  // three sources only
  CHECK(peak.coverage < 0.85);
  CHECK(peak.score < 0.0745);
  CHECK(peak.score < peak.baseline_score);
  CHECK(q.completed >= 716);
  CHECK(q.failed >= 2);
  CHECK(q.brier < 0.00015);
  CHECK(q.brier < q.verdict_brier);
}
#endif

TEST_CASE("the cause of doubt is the first that holds, and the chance of running out of memory falls with room") {
  CHECK(cause_of({{"hf"}, 1024, 0.5, 1}) == DoubtCause::software);
  CHECK(cause_of({{"torchtitan"}, 1024, 0.5, 1}) == DoubtCause::waits);
  CHECK(cause_of({{"torchtitan"}, 1024, 0.01, 1}) == DoubtCause::many_gpus);
  CHECK(cause_of({{"foundry-2023"}, 128, 0.01, 0.9}) == DoubtCause::limit);
  CHECK(cause_of({{"torchtitan-2024"}, 8, 0.01, 0.5}) == DoubtCause::ordinary);
  const DoubtQuantiles q{-0.1, 0, 0.2};
  CHECK(chance_above(q, 0) == doctest::Approx(0.5));
  CHECK(chance_above(q, -0.1) == doctest::Approx(0.9));
  CHECK(chance_above(q, 0.2) == doctest::Approx(0.1));
  CHECK(chance_above(q, 5) < 1e-9);
  const Doubt d = doubt_of(doubt_table(), {{"torchtitan"}, 8, 0, 0.5}, 2, 100, 100, 200);
  CHECK(d.step_time_s.low < 2);
  CHECK(d.step_time_s.high > 2);
  CHECK(d.peak_bytes.low < d.peak_bytes.high);
  CHECK(d.out_of_memory < 0.01);
  CHECK(doubt_of(doubt_table(), {{"torchtitan"}, 8, 0, 2}, 2, 400, 400, 200).out_of_memory > 0.99);
  REQUIRE(d.causes.size() == 1);
  CHECK(d.causes[0] == "as published runs deviate");
}
