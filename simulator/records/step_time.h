// The time of a step as a distribution (simulator/engine/jitter.h computes it).
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

}  // namespace fsdp
