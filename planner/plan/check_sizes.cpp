#include "planner/plan/check_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "models/input/limits.h"
#include "models/units.h"
#include "planner/plan/refusal.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMaxPasses = std::int64_t{1}
                                    << 21;  // operations x micro-batches: what a lowered step takes stays below 16 GB

// All that the forward of one micro-batch makes, and what opaque operations read and save, in elements. Products of
// doubles do not overflow.
double elements_at_once(const ModelGraph& model, std::int64_t tokens) {
  const auto count = static_cast<double>(tokens);
  double elements = 0;
  for (const Tensor& t : model.tensors) {
    const bool slots = t.experts.count > 0;
    const double rows =
        slots ? static_cast<double>(t.experts.count) * static_cast<double>(t.experts.capacity(tokens)) : count;
    elements += rows * static_cast<double>(t.width);
  }
  for (const Op& op : model.ops)
    elements += count * (static_cast<double>(op.shape.opaque_bytes_per_token) +
                         static_cast<double>(op.shape.opaque_saved_bytes_per_token));
  return elements;
}

void check_passes(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  const auto batches = static_cast<std::int64_t>(plan.micro_batches.size());
  const auto passes = batches * static_cast<std::int64_t>(model.ops.size());
  // Of the output layer that runs a part at a time: its kernels, gathers and reductions, and a look at every unit.
  const std::int64_t of_a_part = 8 + static_cast<std::int64_t>(plan.units.size());
  if (plan.loop.chunk_head && plan.loss_chunks > kMaxPasses / (batches * of_a_part))
    throw InputError(field(where, "loss_chunks"),
                     std::to_string(plan.loss_chunks) + " parts of the loss in each of " + std::to_string(batches) +
                         " micro-batches, with the output layer in each, make too many operations",
                     "use fewer parts, or fewer and larger micro-batches");
  if (passes <= kMaxPasses) return;
  throw InputError(field(where, "micro_batches"),
                   std::to_string(plan.micro_batches.size()) + " micro-batches of a model with " +
                       with_commas(static_cast<std::int64_t>(model.ops.size())) + " operations make a step of " +
                       with_commas(passes) + " forward operations, more than " + with_commas(kMaxPasses),
                   "use fewer and larger micro-batches");
}

void check_positions(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  for (const Op& op : model.ops) {
    if (op.kind == OpKind::position_embedding && plan.seq_len > op.shape.positions) {
      throw InputError(field(where, "seq_len"),
                       std::to_string(plan.seq_len) + " tokens, but '" + model.name + "' has learned positions for " +
                           std::to_string(op.shape.positions),
                       "use at most " + std::to_string(op.shape.positions));
    }
  }
}

}  // namespace

void check_batches(const ShardingPlan& plan, std::string_view where) {
  const Origin at = field(where, "micro_batches");
  if (plan.micro_batches.empty()) throw InputError(at, "there is no micro-batch", "give at least one, such as [1]");
  if (static_cast<std::int64_t>(plan.micro_batches.size()) > kGradAccum.most)
    throw InputError(at, fmt::format("more than {} micro-batches", with_commas(kGradAccum.most)),
                     "use fewer and larger ones");
  if (!kSeqLen.holds(plan.seq_len))
    throw InputError(field(where, "seq_len"), std::to_string(plan.seq_len) + " tokens per sequence",
                     plan.seq_len < kSeqLen.least ? "use at least 1" : "use at most " + with_commas(kSeqLen.most));
  std::int64_t tokens = 0;
  for (const std::int64_t s : plan.micro_batches) {
    if (!kMicroBatch.holds(s))
      throw InputError(at, "a micro-batch of " + std::to_string(s) + " sequences",
                       s < kMicroBatch.least ? "use at least 1" : "use at most " + with_commas(kMicroBatch.most));
    if (s * plan.seq_len > kMostTokensAtOnce)
      throw InputError(at,
                       fmt::format("{} sequences of {} tokens are more than {} tokens at once", s, plan.seq_len,
                                   with_commas(kMostTokensAtOnce)),
                       "use fewer or shorter sequences");
    tokens += s * plan.seq_len;
  }
  if (!kLossChunks.holds(plan.loss_chunks))
    throw InputError(field(where, "loss_chunks"), std::to_string(plan.loss_chunks) + " parts of the loss",
                     "use 1 to " + with_commas(kLossChunks.most));
  if (tokens > kMostTokensPerRank)
    throw InputError(at, "more than 2^36 tokens per rank and step", "use fewer or shorter sequences");
}

void check_sizes(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  check_passes(plan, model, where);
  check_positions(plan, model, where);
  const std::int64_t most = *std::max_element(plan.micro_batches.begin(), plan.micro_batches.end());
  const double elements = elements_at_once(model, most * plan.seq_len);
  if (elements <= static_cast<double>(kMostElements)) return;
  throw InputError(field(where, "seq_len"),
                   fmt::format("{} sequences of {} tokens make tensors of {:.2g} elements at once, more than {}", most,
                               plan.seq_len, elements, with_commas(kMostElements)),
                   "use fewer or shorter sequences");
}

}  // namespace fsdp
