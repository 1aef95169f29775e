// The hash that everything pseudo-random in a run is made of: SplitMix64 (Steele, Lea, Flood 2014), one step from state
// z.
#pragma once

#include <cstdint>

#include "executor/arithmetic/device.h"

namespace fsdp {

[[nodiscard]] FSDP_DEVICE constexpr std::uint64_t split_mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace fsdp
