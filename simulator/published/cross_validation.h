// How good the fitted constants are on runs that they were not fitted to: every row is predicted by constants fitted
// without it.
//
//   const CrossValidation v = cross_validate(runs, HoldOut::source_model);
//   v.summary.headline.step_time.mean
//
// Beside it, on the same split, what a fit without a schedule reaches: per GPU eight linear features of a run (see
// linear_baseline.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "simulator/published/accuracy.h"
#include "simulator/published/fit_runs.h"

namespace fsdp {

// What is left out together: all rows of a model in a source; all rows of a source (which then has pooled constants
// only); a random tenth of all rows.
enum class HoldOut : std::uint8_t { source_model, source, random };
[[nodiscard]] std::string_view name(HoldOut);                                         // "source-model"
[[nodiscard]] HoldOut parse_hold_out(std::string_view text, std::string_view where);  // throws InputError

struct CrossValidationOptions {
  std::uint64_t seed = 1;  // of the random split
  int threads = 1;
  std::function<void(const std::string& what)> progress{};
};
struct CrossValidation {
  std::int64_t folds = 0;
  std::vector<AccuracyRow> rows;  // in the order of the runs, predicted when held out
  AccuracySummary summary;
  AccuracySummary linear;  // of the linear features, same rows, same folds
};
// `runs` are those of read_fit_runs. Their derivatives are taken at the fit to all of them.
[[nodiscard]] CrossValidation cross_validate(std::span<FitRun> runs, HoldOut, const CrossValidationOptions& = {});

// Seconds per step of `test` by weighted least squares on `train`, per GPU: the smallest sum of squared relative
// errors. A GPU that `train` lacks is predicted by all rows.
[[nodiscard]] std::vector<double> linear_baseline(std::span<const FitRun* const> train,
                                                  std::span<const FitRun* const> test);

}  // namespace fsdp
