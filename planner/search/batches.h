// The batch of a step, from the sizes that a user chose: one resolver for plans and for searches.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fsdp {

// Sequences per rank and micro-batch, and how many of those make a step.
struct Batch {
  std::int64_t micro_batch = 1, grad_accum = 1;
  friend bool operator==(const Batch&, const Batch&) = default;
};

// Sequences per rank and micro-batch, micro-batches per step, sequences per step: any two decide the third.
struct BatchSizes {
  std::optional<std::int64_t> micro_batch, grad_accum, global_batch;
};

// Which micro-batches are listed of those that nothing fixes: powers of two, or also those between.
enum class Fineness : std::uint8_t { powers_of_two, every_divisor };

// The batches that the sizes allow, smallest micro-batch first. Two of them decide; all three must agree; with the
// global batch alone every power of two (and the whole) that divides a rank's share; without it 1, 2, 4 ... 64, as far
// as their tokens are few enough; every divisor, or 1, 2, 3 ... 64 with steps of at most a sixth, where finer is
// asked for. Throws InputError for a contradiction, for what does not divide, and for sizes that
// no machine holds, so that every product of sizes stays far below 2^63.
[[nodiscard]] std::vector<Batch> batches(const BatchSizes&, std::int64_t ranks, std::int64_t seq_len,
                                         Fineness = Fineness::powers_of_two);

}  // namespace fsdp
