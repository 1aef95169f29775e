#include "cli/batch.h"

#include <fmt/format.h>

#include "models/input/error.h"

namespace fsdp::cli {
namespace {

constexpr std::int64_t kMostSequences = 65'536, kMostMicroBatches = 1024;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 28U;  // of a micro-batch

std::string contradiction(const Batch& b, std::int64_t ranks) {
  return fmt::format("{} sequences per step are not {} per micro-batch x {} micro-batches x {} GPUs", *b.global,
                     *b.micro, *b.accum, ranks);
}

}  // namespace

Batch batch_of(const Flags& flags, std::int64_t ranks) {
  Batch b{parse_optional_count(flags.micro_batch, "--micro-batch", 1, kMostSequences),
          parse_optional_count(flags.grad_accum, "--grad-accum", 1, kMostMicroBatches),
          parse_optional_count(flags.global_batch, "--global-batch", 1, ranks * kMostSequences)};
  if (!b.global) return b;
  const std::int64_t per_rank = *b.global / ranks;
  const bool divides = *b.global % ranks == 0;
  if (b.micro && b.accum && (!divides || *b.micro * *b.accum != per_rank)) {
    throw InputError("--global-batch", contradiction(b, ranks),
                     "leave out one of --global-batch, --micro-batch and --grad-accum");
  }
  if (!divides)
    throw InputError("--global-batch", fmt::format("{} sequences do not divide over {} GPUs", *b.global, ranks),
                     fmt::format("give a multiple of {}", ranks));
  if (b.micro && !b.accum) {
    if (per_rank % *b.micro != 0)
      throw InputError("--micro-batch",
                       fmt::format("{} does not divide the {} sequences of each GPU", *b.micro, per_rank),
                       "give a divisor");
    b.accum = per_rank / *b.micro;
  } else if (b.accum && !b.micro) {
    if (per_rank % *b.accum != 0)
      throw InputError("--grad-accum",
                       fmt::format("{} does not divide the {} sequences of each GPU", *b.accum, per_rank),
                       "give a divisor");
    b.micro = per_rank / *b.accum;
  }
  return b;
}

void check_sizes(std::int64_t micro, std::int64_t accum, std::int64_t seq_len) {
  if (accum > kMostMicroBatches) {
    throw InputError("--global-batch",
                     fmt::format("needs {} micro-batches per step, more than {}", accum, kMostMicroBatches),
                     "give a larger --micro-batch");
  }
  if (micro * seq_len > kMostTokens) {
    throw InputError("--micro-batch",
                     fmt::format("{} sequences of {} tokens are more than {} tokens at once", micro, seq_len,
                                 with_commas(kMostTokens)),
                     "give fewer sequences or a shorter --seq-len");
  }
}

}  // namespace fsdp::cli
