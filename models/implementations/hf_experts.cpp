// Mixtures of experts in transformers 5, whose default is grouped_mm: choices are sorted by expert, their rows
// gathered, multiplied in one grouped launch per matrix, weighted in fp32, put back in order and summed. Eager, as
// recorded of Mixtral (tests/torch/record_saved.py); T: tokens, C: choices, E: experts, h: width of a row.
//
// Nothing is dropped: the rows are the choices, however they fall, which is what capacity_factor 1 counts (rounded up
// to a row per expert more). Another factor is refused. Qwen3-MoE and OLMoE cast the weights to bf16 before they use
// them, so that their products are bf16: for those the temporaries of combining are an upper bound, by a factor of two.
// Where a block is computed again PyTorch lets the rows go before the last cast of that backward, which is not modelled
// either: the peak there is theirs and one tensor of rows.
#include <algorithm>

#include "models/implementations/pytorch_ops.h"
#include "models/input/error.h"

namespace fsdp::pytorch {
namespace {

struct Sizes {
  Sizes(const Op& op, const Workload& w)
      : cast(w.element_bytes == 2),
        tokens(w.tokens()),
        choices(times(tokens, op.shape.experts.top_k)),
        logits(times(tokens, op.shape.experts.count)),
        row(times(op.shape.width, w.element_bytes)),
        wide(times(op.shape.width, 4)) {
    if (op.shape.experts.capacity_factor != 1)
      throw InputError(setting("implementation"),
                       "hf drops no tokens: a capacity_factor other than 1 has no meaning there",
                       "leave it out of the config, or use native");
  }
  const bool cast;                             // activations are not fp32
  const std::int64_t tokens, choices, logits;  // elements
  const std::int64_t row, wide;                // bytes of a row as it is, and in fp32
};

}  // namespace

// Softmax in fp32, saved; topk, whose indices are saved; renormalised: the sum (fp32 per token) and a clone of what is
// divided in place. Backward goes through [T, E] in fp32 three times.
OpFacts grouped_moe_route(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const bool renormalised = op.shape.renormalised;
  const std::int64_t probabilities = times(s.logits, 4), chosen = times(s.choices, 4);
  return {.saved_outputs = 0b10,
          .saved_extra_bytes = plus(probabilities, renormalised ? plus(times(s.tokens, 4), chosen) : 0),
          .forward_scratch_bytes = s.cast ? probabilities : 0,
          .backward_scratch_bytes = plus(2 * probabilities, 3 * chosen),
          .forward_launches = static_cast<std::int16_t>(2 + (s.cast ? 1 : 0) + (renormalised ? 3 : 0)),
          .backward_launches = static_cast<std::int16_t>(5 + (s.cast ? 1 : 0) + (renormalised ? 7 : 0)),
          .forward_traffic_bytes = plus(times(s.logits, w.element_bytes + 16), 8 * chosen),
          .backward_traffic_bytes = plus(times(s.logits, w.element_bytes + 24), 24 * chosen),
          .forward_inside = s.cast ? Inside{{probabilities}, "+0 +e -0 +o"} : Inside{}};
}

// Sort (values and order, int64), the order divided by k, and the rows gathered by that; offsets by a histogram and a
// cumulative sum. Saved: both orders. Backward adds the rows into zeros (a copy of them) and sorts the indices once
// more, in a kernel of its own (four int64).
OpFacts grouped_moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t ids = times(s.choices, 8), tokens = times(s.tokens, s.row), rows = times(s.choices, s.row);
  return {.saved_extra_bytes = 2 * ids,
          .forward_scratch_bytes = plus(ids, times(s.choices, 4)),
          .backward_scratch_bytes = plus(tokens, 4 * ids),
          .forward_launches = 8,
          .backward_launches = 5,
          .forward_traffic_bytes = plus(2 * rows, 10 * ids),
          .backward_traffic_bytes = plus(plus(3 * tokens, 3 * rows), 10 * ids)};
}

// aten::_grouped_mm saves its input; backward is two more.
OpFacts grouped_expert_linear(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t elements =
      plus(times(rows(s.experts, w), s.in + s.out), times(times(s.in, s.out), s.experts.count));
  const std::int64_t bytes = times(elements, w.element_bytes);
  return {
      .saved_inputs = 0b1, .backward_launches = 2, .forward_traffic_bytes = bytes, .backward_traffic_bytes = 2 * bytes};
}

// The rows times their weights, in fp32, as the weights are; these in the order of a token's choices; their sum, and
// its cast. Saved: the rows, their weights and that order. Backward: the cast, the sum's copy to all choices, put into
// the rows' order (zeros and a copy), times weights and times rows.
OpFacts grouped_moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t wide = times(s.choices, s.wide), sum = times(s.tokens, s.wide), out = times(s.tokens, s.row),
                     rows = times(s.choices, s.row), ids = times(s.choices, 12);
  const std::int64_t cast = s.cast ? plus(sum, out) : 0;  // read and written
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = ids,
          .forward_scratch_bytes = std::max(2 * wide - out, plus(wide, s.cast ? sum : 0)),
          .backward_scratch_bytes = times(3, wide),
          .forward_launches = static_cast<std::int16_t>(6 + (s.cast ? 1 : 0)),
          .backward_launches = static_cast<std::int16_t>(7 + (s.cast ? 2 : 0)),
          .forward_traffic_bytes = plus(plus(rows, plus(4 * wide, sum)), plus(cast, 4 * ids)),
          .backward_traffic_bytes =
              plus(plus(plus(sum, 12 * wide), 2 * rows), plus(cast, plus(s.cast ? wide : 0, 4 * ids))),
          .forward_inside = {{wide, wide, sum},
                             s.cast ? MemoryScript("+e +0 +1 -0 +2 +o -1 -2") : MemoryScript("+e +0 +1 -0 +o -1")},
          .backward_inside = {{sum, wide, wide, wide},
                              s.cast ? MemoryScript("+0 -y +1 -0 +2 +3 -2 -1 +1 +2 +o0 -1 +o1 -2 -3 -i0 -e")
                                     : MemoryScript("+1 -y +2 +3 -2 -1 +o0 +2 +o1 -2 -3 -i0 -e")}};
}

}  // namespace fsdp::pytorch
