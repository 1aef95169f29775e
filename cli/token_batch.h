// A step's batch that is given in tokens (--global-batch-tokens).
#pragma once

#include <cstdint>

#include "cli/options.h"
#include "models/input/error.h"

namespace fsdp::cli {

// Sequences of a step that is given in tokens. What its error suggests are multiples that `ranks` can share.
[[nodiscard]] std::int64_t sequences_of(const Flags&, std::int64_t ranks, std::int64_t seq_len);

// What is wrong with a batch that was given in tokens is said of that flag.
[[nodiscard]] InputError naming_batch(const InputError&, const Flags&);

}  // namespace fsdp::cli
