// Mixtures of experts in transformers 5, whose default is grouped_mm: choices are sorted by expert, their rows
// gathered, multiplied in one grouped launch per matrix, weighted, put back in order and summed. Eager, as recorded of
// Mixtral, OLMoE and Qwen3-MoE (tests/torch/record_saved.py, random_plans.py --memory); T: tokens, C: choices, E:
// experts, h: width of a row.
//
// Nothing is dropped: the rows are the choices, however they fall, which is what capacity_factor 1 counts (rounded up
// to a row per expert more). Another factor is refused. Mixtral's weights of choices are fp32, and so is what they
// weight; OLMoE and Qwen3-MoE cast them first (wide_weight). All indices are int64.
#include <algorithm>

#include "models/implementations/pytorch_ops.h"

namespace fsdp::pytorch {
namespace {

struct Sizes {
  Sizes(const Op& op, const Workload& w)
      : cast(w.element_bytes == 2),
        wide(cast && op.shape.wide_weight),
        tokens(w.tokens()),
        choices(times(tokens, op.shape.experts.top_k)),
        logits(times(tokens, op.shape.experts.count)),
        offsets(4 * op.shape.experts.count),
        ids(times(choices, 8)),
        row(times(op.shape.width, w.element_bytes)),
        weight(wide ? 4 : w.element_bytes),
        weighted_row(times(op.shape.width, weight)) {
    require_all_tokens(op, "hf");
  }
  const bool cast, wide;                         // activations are not fp32; but weights of choices are
  const std::int64_t tokens, choices, logits;    // elements
  const std::int64_t offsets, ids;               // bytes: where the experts' rows end (int32), an index per choice
  const std::int64_t row, weight, weighted_row;  // bytes: a row as it is, a weight, a row times a weight
};

// Within their kernel, aten::index_put's gradients sort the indices: two orders in, two out.
std::int64_t sort_bytes(const Sizes& s) { return 4 * s.ids; }

}  // namespace

// Softmax in fp32, saved; topk, whose indices are saved; renormalised: the sum (fp32 per token) and a clone of what is
// divided in place; a cast of the weights, where they are not left in fp32. Backward goes through [T, E] in fp32 three
// times.
OpFacts grouped_moe_route(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const bool renormalised = op.shape.renormalised;
  const int casts = s.cast ? (s.wide ? 1 : 2) : 0;
  const std::int64_t probabilities = times(s.logits, 4), chosen = times(s.choices, 4);
  return {.saved_outputs = 0b10,
          .saved_extra_bytes = plus(probabilities, renormalised ? plus(times(s.tokens, 4), chosen) : 0),
          .wide_outputs = static_cast<std::uint8_t>(s.wide ? 0b1 : 0),
          .forward_scratch_bytes = s.cast ? probabilities : 0,
          .backward_scratch_bytes = plus(2 * probabilities, 3 * chosen),
          .forward_launches = static_cast<std::int16_t>(2 + casts + (renormalised ? 3 : 0)),
          .backward_launches = static_cast<std::int16_t>(5 + casts + (renormalised ? 7 : 0)),
          .forward_traffic_bytes = plus(times(s.logits, w.element_bytes + 16), 8 * chosen),
          .backward_traffic_bytes = plus(times(s.logits, w.element_bytes + 24), 24 * chosen),
          .forward_inside = s.cast ? Inside{{probabilities}, "+0 +e -0 +o"} : Inside{}};
}

// DeepSeek-V3's, all in fp32 (bytes of [T, E]: `all`, of a number per choice: `chosen`, per token: `sums`). Sigmoids,
// which are kept; with the bias added; the two best of each group, their sum, the best groups by it, a mask of them,
// copied to all experts and as booleans; what the mask leaves of the sum, of which the top k; their sigmoids, divided
// by their sum (kept with a copy of what is divided in place) and times the factor. Python's variables hold all but the
// first sum to the end. Backward: the quotient's (five tensors of choices at once), added into zeros (a copy of them),
// the sigmoid's.
OpFacts sigmoid_moe_route(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const bool renormalised = op.shape.renormalised;
  const std::int64_t all = times(s.logits, 4), chosen = times(s.choices, 4), sums = times(s.tokens, 4);
  const std::int64_t divided = renormalised ? plus(chosen, sums) : 0;
  const std::int64_t groups = times(sums, plus(times(6, op.shape.groups), times(2, op.shape.chosen_groups)));
  const std::int64_t variables = plus(times(2, all), plus(all / 4, groups));
  return {.saved_outputs = 0b10,
          .saved_extra_bytes = plus(all, divided),
          .wide_outputs = static_cast<std::uint8_t>(s.cast ? 0b1 : 0),
          .forward_scratch_bytes = std::max(plus(variables, all) - divided, plus(variables, chosen)),
          .backward_scratch_bytes = plus(times(2, all), chosen) - divided,
          .forward_launches = static_cast<std::int16_t>(14 + (renormalised ? 4 : 0)),
          .backward_launches = static_cast<std::int16_t>(4 + (renormalised ? 7 : 0)),
          .forward_traffic_bytes = plus(plus(times(10, all), times(3, groups)), times(12, chosen)),
          .backward_traffic_bytes = plus(times(6, all), times(16, chosen)),
          .forward_inside = {{plus(variables, all) - divided, plus(variables, chosen)}, "+e +0 -0 +1 +o -1"},
          .backward_inside = {{times(renormalised ? 5 : 2, chosen), plus(all, renormalised ? 0 : chosen),
                               all - (renormalised ? sums : 0)},
                              "-y +0 -0 +1 +2 -1 +o -2 -e"}};
}

// DeepSeek-V2's, of logits in fp32: a softmax, which is kept, of which the top k, times the factor. In groups: the best
// of each group, the best groups by it, a mask of them, copied to all experts and as booleans, and what that leaves of
// the softmax, for which the booleans' opposite is kept. Python's variables hold it all to the end.
OpFacts wide_moe_route(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const bool grouped = op.shape.groups > 1;
  const std::int64_t all = times(s.logits, 4), chosen = times(s.choices, 4), sums = times(s.tokens, 4);
  const std::int64_t groups = times(sums, plus(times(4, op.shape.groups), times(2, op.shape.chosen_groups)));
  const std::int64_t variables = grouped ? plus(times(2, all), groups) : 0, left = grouped ? all : 0;
  return {.saved_outputs = 0b10,
          .saved_extra_bytes = plus(all, left / 4),
          .wide_outputs = static_cast<std::uint8_t>(s.cast ? 0b1 : 0),
          .forward_scratch_bytes = plus(variables, chosen),
          .backward_scratch_bytes = plus(all, chosen),
          .forward_launches = static_cast<std::int16_t>(grouped ? 11 : 3),
          .backward_launches = static_cast<std::int16_t>(grouped ? 5 : 4),
          .forward_traffic_bytes = plus(plus(times(3, all), times(6, left)), plus(times(3, chosen), s.ids)),
          .backward_traffic_bytes = plus(plus(times(6, all), times(2, left)), times(4, chosen)),
          .forward_inside = {{plus(variables, chosen)}, "+e +0 +o -0"},
          .backward_inside = {{chosen, all, all, left}, "+0 -y +1 +2 -1 -0 +3 -2 +o -3 -e"}};
}

// The chosen logits' own softmax, saved with the choices. Backward puts its gradient between zeros, and copies.
OpFacts moe_route_of_chosen(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t all = times(s.logits, w.element_bytes), chosen = times(s.choices, w.element_bytes);
  return {.saved_outputs = 0b11,
          .forward_scratch_bytes = chosen,
          .backward_scratch_bytes = plus(all, chosen),
          .forward_launches = 2,
          .backward_launches = 3,
          .forward_traffic_bytes = plus(all, plus(times(chosen, 3), s.ids)),
          .backward_traffic_bytes = plus(times(3, all), plus(times(chosen, 4), s.ids)),
          .backward_inside = {{chosen, all}, "+0 -y +1 -0 +o -1"}};
}

// Sort (values and order), the order divided by k, and the rows gathered by that, the weights by the order; where the
// experts' rows end, by a histogram (of a cast) and a cumulative sum. Saved: both orders and the ends, and for the
// product with them the weights, for gradients of biases the sorted ids; all but the divided order are variables until
// the experts return. Backward adds the rows into zeros (a copy of them).
OpFacts grouped_moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t tokens = times(s.tokens, s.row), rows = times(s.choices, s.row), sort = sort_bytes(s);
  const std::int64_t order = plus(s.ids, s.offsets), sorted = op.shape.keeps_order ? s.ids : 0;
  return {.saved_extra_bytes = plus(s.ids, plus(order, sorted)),
          .passed_bytes = times(s.choices, s.weight),
          .variable_bytes = plus(order, plus(order, s.ids / 2)),  // the sorted ids and their cast, and the histogram
          .variable_saved_bytes = plus(order, sorted),
          .backward_scratch_bytes = plus(tokens, sort),
          .forward_launches = 8,
          .backward_launches = 5,
          .forward_traffic_bytes = plus(2 * rows, 10 * s.ids),
          .backward_traffic_bytes = plus(plus(3 * tokens, 3 * rows), 10 * s.ids),
          .backward_inside = {{tokens, sort}, "+0 +o0 +1 -1 -0 -y -e"}};
}

// aten::_grouped_mm saves its input; backward is two more. A bias is gathered for every row before, which is a variable
// until the experts return (of the first product until the second is made), and added in place; its gradient is that of
// a gather, by the sorted ids.
OpFacts grouped_expert_linear(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t y = times(times(rows(s.experts, w), s.out), w.element_bytes),
                     x = times(times(rows(s.experts, w), s.in), w.element_bytes),
                     weights = times(times(times(s.in, s.out), s.experts.count), w.element_bytes);
  const std::int64_t bytes = plus(plus(x, y), weights);
  OpFacts f{
      .saved_inputs = 0b1, .backward_launches = 2, .forward_traffic_bytes = bytes, .backward_traffic_bytes = 2 * bytes};
  if (op.params.size() < 2) return f;
  const Sizes sizes(op, w);
  const std::int64_t zeros = plus(times(times(s.out, s.experts.count), w.element_bytes), sort_bytes(sizes));
  f.variable_bytes = y;
  f.forward_launches = 3, f.backward_launches = 5;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 5 * y);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, plus(y, plus(2 * zeros, 10 * sizes.ids)));
  f.backward_scratch_bytes = std::max<std::int64_t>(zeros - x, 0);
  f.backward_inside = {{zeros}, "+o -i0 +0 -0"};
  return f;
}

// The rows times their weights; the inverse order; the products in the order of a token's choices; their sum, and its
// cast where products are fp32. Saved: the rows and that order (the weights were gathered before). Backward: the cast,
// the sum's copy to all choices (a view where there is one), put into the rows' order (zeros and a copy), times rows
// and times weights. Recomputation ends in the gather of the products, whose backward asks for it: it has the copy to
// all choices then. A checkpointed module's backward lets the rows go before the last cast.
OpFacts grouped_moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t product = times(s.choices, s.weighted_row), sum = times(s.tokens, s.weighted_row),
                     out = times(s.tokens, s.row), rows = times(s.choices, s.row), ids = plus(s.ids, s.ids / 2);
  const std::int64_t cast = s.wide ? plus(sum, out) : 0;  // read and written
  const std::int64_t copy = s.wide || op.shape.experts.top_k > 1 ? product : 0;
  const Inside narrow_backward{{sort_bytes(s), copy, product, product},
                               "+1 -y | +2 +3 +0 -0 -2 -1 -e +2 +o0 +o1 -2 -3 -i0"},
      narrow_again{narrow_backward.bytes, "+1 -y | +2 +3 +0 -0 -2 -1 -e +2 +o0 -i0 +o1 -2 -3"};
  const Inside wide_backward{{sum, product, product, product},
                             "+0 -y +1 -0 | +2 +3 -2 -1 -e +1 +2 +o0 -2 +o1 -1 -3 -i0"},
      wide_again{wide_backward.bytes, "+0 -y +1 -0 | +2 +3 -2 -1 -e +1 +2 -i0 +o0 -2 +o1 -1 -3"};
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = s.ids,
          .forward_scratch_bytes = std::max(2 * product - out, plus(product, s.wide ? sum : 0)),
          .backward_scratch_bytes = times(3, product),
          .forward_launches = static_cast<std::int16_t>(6 + (s.wide ? 1 : 0)),
          .backward_launches = static_cast<std::int16_t>(7 + (s.wide ? 2 : 0)),
          .forward_traffic_bytes = plus(plus(rows, plus(4 * product, sum)), plus(cast, 4 * ids)),
          .backward_traffic_bytes =
              plus(plus(plus(sum, 12 * product), 2 * rows), plus(cast, plus(s.wide ? product : 0, 4 * ids))),
          .forward_inside = {{product, product, sum},
                             s.wide ? MemoryScript("+0 +e +1 -0 +2 +o -1 -2") : MemoryScript("+0 +e +1 -0 +o -1")},
          .backward_inside = s.wide ? wide_backward : narrow_backward,
          .forward_stopped = {{product}, "+0 +e -0"},
          .backward_again = s.wide ? wide_again : narrow_again};
}

}  // namespace fsdp::pytorch
