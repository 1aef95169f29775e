// What a step may take: a distribution (simulator/engine/jitter.h computes it), and what comes on top where the
// allocator gives memory back (simulator/predict/retries.h).
#pragma once

#include <cstdint>
#include <optional>

#include "models/units.h"

namespace fsdp {

struct StepTimeDistribution {
  Seconds mean, p50, p95, p99;
  std::optional<std::uint64_t> seed;  // of the cluster drawn; nullopt: over clusters, by order statistics
  std::int64_t samples = 0;           // steps sampled; 0: none were needed
  friend bool operator==(const StepTimeDistribution&, const StepTimeDistribution&) = default;
};

// Of a tight plan.
struct RetryStall {
  double per_rank = 0;        // retries of one rank in a steady step, mean over steps whose times vary
  double per_step = 0;        // stops of all ranks in a step: when any of them retries, the others wait for it
  Seconds low, likely, high;  // that a step takes longer
  friend bool operator==(const RetryStall&, const RetryStall&) = default;
};

}  // namespace fsdp
