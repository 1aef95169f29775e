// Micro-benchmarks of this machine -> Costs. Never a plan: single kernels and single collectives on generic shapes, with as many
// ranks working at once as a run will have, so that shared caches and memory are in the numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "executor/backend.h"
#include "planner/costs.h"

namespace fsdp {

struct CalibrateOptions {
  std::int64_t ranks = 2;
  double seconds_budget = 20;  // roughly, for everything
  DType type = DType::f32;
  std::function<void(const std::string& what)> progress;
};
[[nodiscard]] Costs calibrate_host(const CalibrateOptions&);

}  // namespace fsdp
