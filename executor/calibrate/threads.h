// What it costs that a rank's streams are threads: waking them, and waiting for the slowest rank. For calibrate/
// alone.
#pragma once

#include "executor/backend.h"
#include "models/dtype.h"

namespace fsdp {

// Means over many events and all ranks, seconds; `skew_share` a fraction. See Costs for what they mean.
struct ThreadCosts {
  double wake = 0, wake_beside = 0, collective_beside = 0, skew = 0, skew_share = 0, skew_most = 0;
};
// All ranks at once, on small matmuls of `type`. What needs two ranks is 0 on one.
[[nodiscard]] ThreadCosts time_threads(Backend&, DType type, double seconds_budget);

}  // namespace fsdp
