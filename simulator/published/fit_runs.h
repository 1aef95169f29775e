// A few constants of the cost model per platform, fitted to step times that others published.
//
//   const FitRuns runs = read_fit_runs(file, "runs.csv");
//   const CalibratedRuns fitted = fit_runs(runs.rows, "calibrate --runs runs.csv");
//   write(to_json_text(fitted.costs));                                 // "fsdp-plan/fitted-costs/1"
//   const AccuracyReport report = accuracy_of(file, "runs.csv", prices_of(fitted.costs));
//
// Per GPU one problem (simulator/published/fit.h): log step time over rows, a pooled value of each constant, drawn
// weakly to the datasheet's, and a value per platform, drawn to the pooled one. A constant is fitted only where five
// rows inform it, that is, where one per cent of it moves the prediction by 0.02 % or more; a platform with fewer has
// the pooled value, a GPU with fewer the datasheet's. Rows of one model on one platform err together, so n of them
// count as n / (1 + (n - 1) kShared) rows.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/costs/fitted.h"
#include "simulator/published/accuracy.h"
#include "simulator/published/run_setup.h"

namespace fsdp {

struct FitRun {
  PublishedRun run;
  PreparedRun prepared;
  double measured_s = 0;
  double datasheet_error = 0;  // log(predicted / measured) with default_costs
  std::vector<double>
      derivatives;  // d log(predicted) / d log(constant), per cost_parameters(): near the constants in use
};
struct FitRuns {
  std::vector<FitRun> rows;
  std::vector<RefusedRow>
      left_out;  // and why: not readable, not expressible, without step time, the same as an earlier one
};
struct FitRunsOptions {
  int threads = 1;
  const FittedCosts* start =
      nullptr;  // near the result (a fit to these rows and a few more): the rows' derivatives are kept
  std::function<void(const std::string& what)> progress{};
};
// Lowers every row. Throws InputError for a file that is not a CSV of runs or that holds no row to fit to.
[[nodiscard]] FitRuns read_fit_runs(std::istream&, std::string_view where, const FitRunsOptions& = {});
// The derivatives at these constants.
void differentiate(std::span<FitRun>, const FittedCosts&, int threads);

struct PlatformFit {  // what happened, for people
  std::string gpu, source, software_generation;
  std::int64_t rows = 0;
  double before = 0, after = 0;       // mean absolute error, without and with the fit
  std::vector<std::string> at_bound;  // constants that would leave their physical range: a mechanism is missing
};
struct CalibratedRuns {
  FittedCosts costs;
  std::vector<PlatformFit> platforms;
};
// `rows`: pointers to at least one row. `source`: for the document.
[[nodiscard]] CalibratedRuns fit_runs(std::span<const FitRun* const> rows, const std::string& source,
                                      const FitRunsOptions& = {});
[[nodiscard]] CalibratedRuns fit_runs(std::span<const FitRun> rows, const std::string& source,
                                      const FitRunsOptions& = {});

// Each run by its platform, else by its GPU, else by the datasheet.
[[nodiscard]] PriceList prices_of(FittedCosts);
[[nodiscard]] std::int64_t free_constants(const FittedCosts&);
[[nodiscard]] Costs costs_for(const FittedCosts&, const FitRun&);

}  // namespace fsdp
