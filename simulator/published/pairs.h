// Differences beside differences: pairs of published runs that differ in one knob, and how far apart the two are,
// measured and predicted. A plan is chosen by such differences.
//
//   AccuracyOptions options;
//   options.keep_runs = true;
//   const AccuracyReport report = accuracy_of(file, "runs.csv", datasheet_prices(), options);
//   const PairReport pairs = pair_up(report);
//   pairs.pairs[0].measured            // +0.63: `to` takes 63 % longer than `from` for a token on one GPU
//   pairs.groups[0].sign_right         // of all pairs that measured more than 3 % apart
//
// A difference is of seconds per token and GPU, so that runs of different batches can be compared. Source, GPU, nodes,
// fabric, model and software are the same in both runs; notes are not compared. Runs that are the same in everything
// are one configuration, measured several times: their mean counts.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "simulator/published/accuracy.h"

namespace fsdp {

// From here on a measured difference has a sign that a prediction must get right.
inline constexpr double kClearDifference = 0.03;

struct RunPair {
  std::string knob, from, to;                   // "sharding", "full", "hybrid of 4"
  std::vector<std::string> from_rows, to_rows;  // ids
  std::string source, trust, model, gpu;        // trust: "A" if both runs have it
  std::int64_t gpus = 0;                        // of the larger run
  double measured = 0, predicted = 0;
  [[nodiscard]] double error() const { return predicted - measured; }
  [[nodiscard]] bool clear() const { return std::abs(measured) > kClearDifference; }
  [[nodiscard]] bool sign_right() const { return measured * predicted > 0; }
};

struct PairGroup {
  std::string name;                        // "all", "trust A", a knob, "sharding, over 128 GPUs"
  ErrorSummary error;                      // of the predicted less the measured difference
  std::int64_t clear = 0, sign_right = 0;  // sign_right: of the clear ones
};

struct PairReport {
  std::vector<RunPair> pairs;  // by knob, then in the order of the file
  std::vector<PairGroup> groups;
};

// Every pair among the report's rows with a measured step time. Where a knob takes more than 64 values while all else
// stays, each value is paired with the next one only. The report must have kept its runs.
[[nodiscard]] PairReport pair_up(const AccuracyReport&);

// One JSON object: that of the report, and "pairs".
[[nodiscard]] std::string to_json_text(const AccuracyReport&, const PairReport&);

}  // namespace fsdp
