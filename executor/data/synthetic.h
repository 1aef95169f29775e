// Initial weights and synthetic tokens of one index, the same on the host and in CUDA kernels; synthetic.cpp defines
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/arithmetic/device.h"
#include "executor/data/split_mix.h"
#include "models/dtype.h"
#include "models/graph.h"

namespace fsdp {

// How a parameter begins: hashed with a key, element by element, or with one value everywhere.
struct InitialValues {
  bool hashed = false;
  std::uint64_t key = 0;
  double value = 0;
};
[[nodiscard]] InitialValues initial_values_of(std::uint64_t seed, const Parameter&);

// 0.02 / sqrt(4 (2^32 - 1) / 12): the deviation of hashed weights is 0.02.
FSDP_DEVICE inline double hashed_weight(std::uint64_t key, std::int64_t index) {
  const std::uint64_t h = split_mix(key ^ static_cast<std::uint64_t>(index));
  const std::uint64_t sum = (h & 65535u) + (h >> 16 & 65535u) + (h >> 32 & 65535u) + (h >> 48);
  return static_cast<double>(static_cast<std::int64_t>(sum) - 131070) * 5.285799584260604e-07;
}

FSDP_DEVICE inline std::int64_t hashed_token(std::uint64_t seed, std::int64_t sequence, std::int64_t position,
                                             std::int64_t vocab) {
  const std::uint64_t of_sequence = split_mix(split_mix(seed ^ 0x746F6B656E73u) ^ static_cast<std::uint64_t>(sequence));
  return static_cast<std::int64_t>(split_mix(of_sequence ^ static_cast<std::uint64_t>(position)) %
                                   static_cast<std::uint64_t>(vocab));
}

// Initial value of one element of a parameter: a pure function, so that every rank fills its own shard. Matrices:
// bell-shaped, mean 0, deviation 0.02, from a counter-based hash of (seed, name, index). One-dimensional weights
// (norms) are 1, biases 0.
[[nodiscard]] double initial_value(std::uint64_t seed, const Parameter&, std::int64_t index);
// The same for elements [begin, begin + count), stored at `to` as `type` (fp64, fp32, bf16 or fp16). Hashes the name
// once.
void fill_initial_values(std::uint64_t seed, const Parameter&, std::int64_t begin, std::int64_t count, DType type,
                         std::byte* to);
// Token `position` of global sequence `sequence`. Throws MachineError for an empty vocabulary.
[[nodiscard]] std::int64_t synthetic_token(std::uint64_t seed, std::int64_t sequence, std::int64_t position,
                                           std::int64_t vocab);

}  // namespace fsdp
