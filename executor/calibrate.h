// Micro-benchmarks of this machine -> Costs. Never a plan: single kernels and single collectives on generic shapes,
// with as many ranks working at once as a run will have, so that shared caches and memory are in the numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/backend.h"
#include "planner/costs.h"

namespace fsdp {

struct CalibrateOptions {
  std::int64_t ranks = 2;
  // Of repetitions, roughly: every benchmark runs once whatever the budget is, with all ranks at work.
  double seconds_budget = 20;
  DType type = DType::f32;
  std::function<void(const std::string& what)> progress;
  // For tests, in place of the clock: seconds that one round of a benchmark takes, from what the instruments of every
  // rank saw of it (nothing for what is not a round: "wake", "wake_beside", "collective_beside", "skew", "skew_share",
  // "skew_most", "launch").
  std::function<double(const std::string& what, const std::vector<std::vector<OperationRecord>>& ranks)> clock;
};
// Throws InputError where there are more than 8 ranks for each core of this process.
[[nodiscard]] Costs calibrate_host(const CalibrateOptions&);

// The same of a GPU backend's kernels (`options.ranks` of them; collectives from 2 on), at a GPU's sizes. `platform`:
// the catalog's name of the GPU, which predictions with these costs must be for. Virtual ranks have no communication
// worth measuring: give one rank.
[[nodiscard]] Costs calibrate_gpu(const CalibrateOptions&, const std::string& platform, Backend&);

}  // namespace fsdp
