#include "cli/token_batch.h"

#include <fmt/format.h>

#include "models/input/counted.h"

namespace fsdp::cli {
namespace {

constexpr Limit kGlobalBatchTokens{"global_batch_tokens", 1, std::int64_t{1} << 50};

}  // namespace

std::int64_t sequences_of(const Flags& f, std::int64_t ranks, std::int64_t seq_len) {
  if (f.global_batch)
    throw InputError("--global-batch-tokens", "and --global-batch both say how large a step is", "give one of the two");
  const std::int64_t tokens = parse_tokens(*f.global_batch_tokens, kGlobalBatchTokens);
  if (tokens % seq_len == 0) return tokens / seq_len;
  const std::int64_t unit = seq_len * ranks, below = tokens - tokens % unit, above = below + unit;
  throw InputError(
      "--global-batch-tokens",
      fmt::format("{} tokens are no whole number of sequences of {}", with_commas(tokens), with_commas(seq_len)),
      below == 0 ? fmt::format("give at least {}", above) : fmt::format("give {} or {}", below, above));
}

InputError naming_batch(const InputError& error, const Flags& f) {
  const bool tokens = f.global_batch_tokens && error.file().empty() && error.field() == "global_batch";
  return tokens ? error.at("--global-batch-tokens") : error;
}

}  // namespace fsdp::cli
