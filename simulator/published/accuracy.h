// How far predictions are from published runs: row by row, and summed up per source, GPU, scale and trust.
//
//   std::ifstream file("runs.csv", std::ios::binary);
//   const AccuracyReport report = accuracy_of(file, "runs.csv", datasheet_prices());
//   report.rows[0].step_time_error()         // +0.07: predicted 7 % too slow
//   report.summary.headline.step_time.mean   // mean absolute error over trust A rows without 8-bit matmuls
//
// An error is predicted / measured - 1. Every row of the file is in `rows` or in `skipped`.
#pragma once

#include <cstdint>
#include <functional>
#include <istream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "planner/costs.h"
#include "simulator/published/run_setup.h"

namespace fsdp {

struct AccuracyRow {
  std::string id, source, trust, gpu, model;
  std::int64_t gpus = 0;
  bool float8 = false, experts = false;
  std::optional<double> measured_step_time_s, predicted_step_time_s;
  std::optional<std::int64_t> measured_peak_bytes, predicted_peak_bytes;
  MemoryKind memory_kind{};             // of both peaks
  std::string implementation;           // that models its software
  std::optional<double> exposed_share;  // of the step, that waits for communication; with every_peak
  bool fabric_assumed = false;          // over several nodes, and the row does not say how fast their fabric is
  // Reserved at its peak and what lies outside of the allocator, where a reserved peak was measured (with every_peak:
  // everywhere); and what the device has.
  std::optional<std::int64_t> predicted_total_bytes;
  std::optional<std::int64_t> predicted_needed_bytes;  // allocated instead of reserved; with every_peak
  std::int64_t device_bytes = 0;
  std::vector<std::string> assumptions;
  [[nodiscard]] std::optional<double> step_time_error() const;
  [[nodiscard]] std::optional<double> peak_error() const;
};

// A run that failed for memory.
struct FailedRun {
  std::string id, source, trust, gpu, model;
  std::string implementation;
  std::int64_t gpus = 0;
  std::optional<std::int64_t> predicted_total_bytes = {};  // empty: cannot be expressed, see `reason`
  std::optional<std::int64_t> predicted_needed_bytes = {};
  std::int64_t device_bytes = 0;
  std::string reason = {};
  [[nodiscard]] bool predicted_not_to_fit() const {
    return predicted_total_bytes && *predicted_total_bytes > device_bytes;
  }
};

struct ErrorSummary {  // of absolute errors; bias: mean of the signed ones
  std::int64_t rows = 0;
  double mean = 0, median = 0, p90 = 0, worst = 0, bias = 0;
  std::string worst_id;
};
struct AccuracyGroup {
  std::string by, name;  // "source", "pytorch/torchtitan"
  ErrorSummary step_time, peak;
};

// Order inside groups of the same source, GPU and model: of all pairs whose measured times differ by 2 % or more, the
// share predicted in the right order less the share in the wrong order.
struct RankAgreement {
  std::int64_t groups = 0, pairs = 0;
  double tau = 0;       // over all pairs of all groups; 0 without pairs
  double mean_tau = 0;  // mean over groups
};

struct AccuracySummary {
  AccuracyGroup headline, all;        // headline: trust A without 8-bit matmuls
  std::vector<AccuracyGroup> groups;  // by source, GPU, scale, trust, in this order
  RankAgreement order, headline_order;
  std::int64_t free_constants = 0;        // fitted numbers that the predictions rest on
  std::vector<std::string> repeated_ids;  // at most 100 of them
};

struct AccuracyReport {
  std::vector<AccuracyRow> rows;
  std::vector<RefusedRow> skipped;  // with the failed runs that cannot be expressed
  AccuracySummary summary;
  std::vector<FailedRun> failed = {};
  std::vector<std::string> ignored_columns = {};  // of the file, each with the one that may be meant
  std::vector<PublishedRun> runs = {};  // with keep_runs: those of `rows`, mesh and batches as they were understood
};

// What the costs of a run's platform are: from the datasheet, or fitted.
struct PriceList {
  std::function<Costs(const RunSetup&)> costs_of;
  std::int64_t free_constants = 0;
};
[[nodiscard]] PriceList datasheet_prices();
// `costs` for runs on their GPU, the datasheet's for all others.
[[nodiscard]] PriceList prices_of(Costs);

struct AccuracyOptions {
  bool memory = true;                               // predict peaks too, where one was measured
  bool every_peak = false;                          // and where none was: does the run fit?
  bool keep_runs = false;                           // for what compares rows with one another
  std::function<void(std::int64_t rows)> progress;  // called after every row
};

// The step time that the row states, else its global batch over its throughput; empty if it has neither. Throws
// InputError where the two contradict.
[[nodiscard]] std::optional<double> measured_step_time(const PublishedRun&, const ShardingPlan&);

// Reads, predicts and sums up. Throws InputError for a file that is not a CSV of runs; bad rows are skipped with a
// reason.
[[nodiscard]] AccuracyReport accuracy_of(std::istream&, std::string_view where, const PriceList&,
                                         const AccuracyOptions& = {});
// The rows of both, summed up anew.
[[nodiscard]] AccuracyReport joined(AccuracyReport, AccuracyReport);
[[nodiscard]] AccuracySummary summarize(std::span<const AccuracyRow>);

[[nodiscard]] ErrorSummary summarize_errors(std::span<const double> signed_errors, std::span<const std::string> ids);
[[nodiscard]] RankAgreement rank_agreement(std::span<const AccuracyRow>);

// One JSON object: "rows", "skipped", "summary".
[[nodiscard]] std::string to_json_text(const AccuracyReport&);

}  // namespace fsdp
