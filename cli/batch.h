// Sequences per micro-batch, micro-batches per step, sequences per step: any two of the three flags decide the third.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/options.h"

namespace fsdp::cli {

struct Batch {
  std::optional<std::int64_t> micro, accum, global;
};

// What --micro-batch, --grad-accum and --global-batch say, with the third number filled in where two are given. Throws
// InputError for a contradiction and for what does not divide.
[[nodiscard]] Batch batch_of(const Flags&, std::int64_t ranks);

// Refuses sizes that no machine holds, so that every product of sizes stays far below 2^63.
void check_sizes(std::int64_t micro, std::int64_t accum, std::int64_t seq_len);

}  // namespace fsdp::cli
