#include "planner/search/batches.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostSearched = 64;  // sequences; a user may fix more

void check_positive(const std::optional<std::int64_t>& value, const char* name) {
  if (value && *value < 1)
    throw InputError(setting(name), fmt::format("{} is not a batch size", *value), "use 1 or more");
}

// With the global batch chosen. The product of two chosen sizes may exceed 64 bits: compare quotients.
std::vector<Batch> of_global_batch(const BatchSizes& c, std::int64_t ranks, Fineness fineness) {
  const std::int64_t whole = *c.global_batch / ranks;  // a rank's share
  const bool divides = *c.global_batch % ranks == 0;
  if (c.micro_batch && c.grad_accum) {
    if (!divides || whole % *c.micro_batch != 0 || whole / *c.micro_batch != *c.grad_accum)
      throw InputError(setting("global_batch"),
                       fmt::format("{} sequences per step are not {} per micro-batch x {} micro-batches x {} GPUs",
                                   *c.global_batch, *c.micro_batch, *c.grad_accum, ranks),
                       "leave out one of --global-batch, --micro-batch and --grad-accum");
    return {{*c.micro_batch, *c.grad_accum}};
  }
  if (!divides)
    throw InputError(setting("global_batch"),
                     fmt::format("{} sequences do not divide over {} GPUs", *c.global_batch, ranks),
                     fmt::format("give a multiple of {}; ranks that split layers (--tensor) share theirs", ranks));
  const auto third = [&](std::int64_t given, const char* field) {
    if (whole % given != 0)
      throw InputError(setting(field), fmt::format("{} does not divide the {} sequences of each GPU", given, whole),
                       "give a divisor");
    return whole / given;
  };
  if (c.micro_batch) return {{*c.micro_batch, third(*c.micro_batch, "micro_batch")}};
  if (c.grad_accum) return {{third(*c.grad_accum, "grad_accum"), *c.grad_accum}};
  std::vector<Batch> found;
  const bool fine = fineness == Fineness::every_divisor;
  for (std::int64_t m = 1; m <= std::min(whole, kMostSearched); m = fine ? m + 1 : m * 2)
    if (whole % m == 0 && whole / m <= kGradAccum.most) found.push_back({m, whole / m});
  if (found.empty() && whole > kMostSearched) return {{1, whole}};  // refused below: too many micro-batches
  if (found.empty() || (found.back().micro_batch != whole && whole <= kMostSearched)) found.push_back({whole, 1});
  return found;
}

std::vector<Batch> without_global_batch(const BatchSizes& c, Fineness fineness) {
  const std::int64_t accum = c.grad_accum.value_or(1);
  if (c.micro_batch) return {{*c.micro_batch, accum}};
  std::vector<Batch> found;
  const bool fine = fineness == Fineness::every_divisor;
  for (std::int64_t m = 1; m <= kMostSearched; m = fine ? m + std::max<std::int64_t>(1, m / 6) : m * 2)
    found.push_back({m, accum});
  return found;
}

}  // namespace

std::vector<Batch> batches(const BatchSizes& c, std::int64_t ranks, std::int64_t seq_len, Fineness fineness) {
  check_positive(c.micro_batch, "micro_batch");
  check_positive(c.grad_accum, "grad_accum");
  check_positive(c.global_batch, "global_batch");
  std::vector<Batch> found = c.global_batch ? of_global_batch(c, ranks, fineness) : without_global_batch(c, fineness);
  if (!kSeqLen.holds(seq_len))
    throw InputError(setting("seq_len"), fmt::format("{} tokens per sequence", seq_len),
                     "use 1 to " + with_commas(kSeqLen.most));
  const std::int64_t most = std::min(kMicroBatch.most, kMostTokensAtOnce / seq_len);  // sequences at once
  const Batch smallest = found.front();
  if (smallest.micro_batch > most)
    throw InputError(setting(c.micro_batch ? "micro_batch" : "global_batch"),
                     smallest.micro_batch > kMicroBatch.most
                         ? fmt::format("needs {} sequences at once, more than {}", with_commas(smallest.micro_batch),
                                       with_commas(kMicroBatch.most))
                         : fmt::format("{} sequences of {} tokens are more than {} tokens at once",
                                       smallest.micro_batch, seq_len, with_commas(kMostTokensAtOnce)),
                     "give fewer sequences or a shorter --seq-len");
  if (smallest.grad_accum > kGradAccum.most)
    throw InputError(setting(c.grad_accum ? "grad_accum" : "global_batch"),
                     fmt::format("needs {} micro-batches per step, more than {}", smallest.grad_accum, kGradAccum.most),
                     "give a larger --micro-batch");
  std::erase_if(found, [&](const Batch& b) { return b.micro_batch > most; });
  return found;
}

}  // namespace fsdp
