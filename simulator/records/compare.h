// Validating a prediction is a subtraction.
#pragma once

#include <string>
#include <vector>

#include "simulator/records/measurement.h"
#include "simulator/records/prediction.h"

namespace fsdp {

struct Tolerances {
  double time = 0.15, memory = 0.01;
};

struct CompareRow {
  std::string what;  // "step time", "peak allocated", "forward linear", ...
  double predicted = 0, measured = 0;
  std::string unit;  // "s" or "B"
  [[nodiscard]] double error() const { return measured == 0 ? (predicted == 0 ? 0 : 1) : predicted / measured - 1; }
};

// A disagreement in words, with what most often causes one of its kind.
struct Finding {
  std::string text;    // "forward linear takes 23 % longer than predicted on every rank (+41 ms): ..."
  double seconds = 0;  // of the step, measured less predicted
};

struct ValidationReport {
  // What the measurement could not observe is not compared, and counts as equal.
  bool order_compared = true, time_compared = true, memory_compared = true;
  bool order_equal = false, memory_equal = false,
       within = false;  // within: step time and peak inside the tolerances, order and memory equal
  CompareRow step_time, peak;
  std::vector<CompareRow> memory;     // of a snapshot of PyTorch: reserved bytes, and the parts of the peak
  std::vector<CompareRow> by_action;  // largest absolute disagreement first; measured: mean over the ranks
  std::vector<CompareRow> by_unit;    // "unit 3 (model.layers.1), kernels" and "..., collectives"; likewise
  std::vector<CompareRow>
      where;  // parts of the step on the compute stream ("compute", "exposed all-gather", "idle", ...)
  std::vector<CompareRow>
      by_rank;  // "rank 1, kernels" and "rank 1, collectives": against the one prediction of all ranks
  std::vector<std::string>
      differences;  // the first few, in words: "rank 1, all_gather stream, position 7: predicted ..., executed ..."
  std::vector<Finding> findings;          // of time, largest first
  std::vector<std::string> not_compared;  // and why
  std::vector<std::string> doubts;        // reasons to doubt the measured step time
};

// `not_compared` says what was compared only in parts or not at all: documents of earlier versions hold less.
// Throws InputError when the two were made from different models or plans (which digest, of which file).
[[nodiscard]] ValidationReport compare(const Prediction&, const Measurement&, const Tolerances& = {});

}  // namespace fsdp
