// Validating a prediction is a subtraction.
#pragma once

#include <string>
#include <vector>

#include "simulator/prediction.h"

namespace fsdp {

struct Tolerances { double time = 0.15, memory = 0.01; };

struct CompareRow {
  std::string what;                          // "step time", "peak allocated", "forward linear", ...
  double predicted = 0, measured = 0;
  std::string unit;                          // "s" or "B"
  [[nodiscard]] double error() const { return measured == 0 ? (predicted == 0 ? 0 : 1) : predicted / measured - 1; }
};

struct ValidationReport {
  bool order_equal = false, memory_equal = false, within = false;   // within: step time and peak inside the tolerances, order and memory equal
  CompareRow step_time, peak;
  std::vector<CompareRow> by_action;         // largest absolute disagreement first
  std::vector<std::string> differences;      // the first few, in words: "rank 1, all_gather stream, position 7: predicted ..., executed ..."
};

// Throws InputError when the two were made from different models or plans (which digest, of which file).
[[nodiscard]] ValidationReport compare(const Prediction&, const Measurement&, const Tolerances& = {});

}  // namespace fsdp
