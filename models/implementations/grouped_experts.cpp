// What torchtitan's operators of experts keep, make and move; recorded from the same ones (tests/torch/record_saved.py
// with prime_rl.py and titan_experts.py). C: choices, h: width of a row.
//
// The padding of August 2025, 8 rows more per expert, is left out. In 16 bits: others have no casts.
#include "models/implementations/grouped_experts.h"

#include "models/implementations/pytorch_ops.h"

namespace fsdp::torchtitan {
namespace {

using namespace pytorch;

struct Sizes {
  Sizes(const Op& op, const Workload& w)
      : tokens(w.tokens()),
        choices(times(tokens, op.shape.experts.top_k)),
        ids(times(choices, 8)),
        weights(times(choices, 4)),
        elements(times(choices, op.shape.width)),
        sum(times(tokens, times(op.shape.width, w.element_bytes))),
        rows(times(elements, w.element_bytes)) {
    require_all_tokens(op, "torchtitan");
  }
  std::int64_t tokens, choices;
  std::int64_t ids, weights;  // bytes of an index (int64) and of a weight (fp32) per choice
  std::int64_t elements;      // of the choices' rows
  std::int64_t sum, rows;     // bytes of a row per token and per choice
};

// Which groups are best: the two best scores of each and their sum, the best sums and their indices, a mask.
std::int64_t groups_bytes(const Op& op, const Sizes& s) {
  return times(s.tokens, plus(times(13, op.shape.groups), times(12, op.shape.chosen_groups)));
}
constexpr int kGroupLaunches = 6;

}  // namespace

// Softmax in fp32, which is saved, as are the choices' indices; where weights are renormalised, the weights and the
// sums that they are divided by. They are multiplied by a factor in any case. Two histograms count rows per expert. A
// bias is added for the choice (prime-rl: of sigmoids alone), and weights are gathered again. In place of the copy of
// the logits in fp32, where they are that already, the biased scores are alive at the end.
//
// In groups: the two best of each group, their sum, the best groups by it, a mask of them, and what that leaves of the
// biased scores.
OpFacts moe_route(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const bool renormalised = op.shape.renormalised;
  const std::int64_t logits = times(s.tokens, op.shape.experts.count), probabilities = times(logits, 4);
  const Inside cast{{probabilities}, "+0 +e -0 +o"}, biased{{probabilities}, "+e +0 +o -0"};
  const bool grouped = op.shape.groups > 1;
  const std::int64_t of_groups = groups_bytes(op, s);
  const Inside of_best{{probabilities, of_groups, probabilities, op.shape.in_fp32 ? 0 : probabilities},
                       "+3 +e -3 +0 +1 +2 -1 -0 +o -2"};
  return {.saved_outputs = 0b10,
          .saved_extra_bytes = plus(probabilities, renormalised ? plus(times(s.tokens, 4), s.weights) : 0),
          .wide_outputs = 0b1,
          .forward_scratch_bytes = plus(probabilities, grouped ? plus(probabilities, of_groups) : 0),
          .backward_scratch_bytes = plus(2 * probabilities, 3 * s.weights),
          .forward_launches = static_cast<std::int16_t>((op.shape.sigmoid ? 11 : 9) + (renormalised ? 3 : 0) +
                                                        (grouped ? kGroupLaunches : 0)),
          .backward_launches = static_cast<std::int16_t>(5 + (renormalised ? 6 : 0)),
          .forward_traffic_bytes = plus(times(logits, 2 + 16 + (grouped ? 12 : 0)), 10 * s.weights),
          .backward_traffic_bytes = plus(times(logits, 2 + 24), 24 * s.weights),
          .forward_inside = grouped            ? of_best
                            : op.shape.in_fp32 ? biased
                                               : cast};
}

// Stable sort, the order divided by k, weights gathered by the order, rows by the divided order; a row of zeros put
// below them and all gathered again by int32 indices. Saved: the indices and the weights in order. The rows as gathered
// first stay variables of the module. Backward puts the gradient into zeros (sorted), and adds that to zeros. 14 of the
// launches find the padded order.
OpFacts gathered_moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t sort = 4 * s.ids;
  return {.saved_inputs = 0b1,  // by aten::gather
          .saved_extra_bytes = plus(plus(2 * s.ids, s.ids / 2), s.weights),
          .variable_bytes = s.rows,
          .forward_scratch_bytes = s.rows,
          .backward_scratch_bytes = plus(s.rows, sort),
          .forward_launches = 22,
          .backward_launches = 12,
          .forward_traffic_bytes = plus(6 * s.rows, 12 * s.ids),
          .backward_traffic_bytes = plus(5 * s.rows, plus(s.sum, 12 * s.ids)),
          .backward_scattered = s.elements,
          .forward_inside = {{s.rows}, "+0 +e +o -0"},
          .backward_inside = {{s.rows, sort}, "+0 +1 -1 -y +o0 -0 -e"}};
}

// Rows put back, cast to fp32 (saved), times weights, cast, and added to a copy of zeros. Recomputation ends before
// that addition. Backward gathers, casts, multiplies twice (with the sum over a row), casts, and gathers.
OpFacts padded_moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t wide = times(s.elements, 4);
  return {.saved_extra_bytes = wide,
          .forward_scratch_bytes = plus(wide, plus(s.rows, s.rows)),
          .backward_scratch_bytes = 3 * wide,
          .forward_launches = 8,
          .backward_launches = 12,
          .forward_traffic_bytes = plus(13 * s.rows, 3 * s.sum),
          .backward_traffic_bytes = 23 * s.rows,
          .forward_scattered = s.elements,
          .forward_inside = {{s.rows, wide, s.rows, s.sum}, "+0 -i0 +e +1 +2 -1 -0 +3 +o -3 -2"},
          .backward_inside = {{s.rows, wide, wide, wide}, "| +0 -y +1 -0 +2 +3 +o1 -3 -e -1 +0 -2 +o0 -0"},
          .forward_stopped = {{s.rows, wide, s.rows, s.sum}, "+0 -i0 +e +1 +2 -1 -0 +3 -3 -2"}};
}

// The same by aten::index, whose gradient sorts its indices and adds rows up in place, for rows and for the padded
// ones. The sorted weights, which nothing reads, and the rows as gathered first stay variables of the module.
OpFacts indexed_moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t sort = 4 * s.ids;
  OpFacts f = gathered_moe_dispatch(op, w);
  f.saved_inputs = 0;
  f.saved_extra_bytes -= s.weights;
  f.variable_bytes = plus(s.rows, s.weights);
  f.backward_launches = 16;
  f.backward_traffic_bytes = plus(5 * s.rows, plus(s.sum, 20 * s.ids));
  f.backward_scattered = 0;
  f.backward_inside = {{s.rows, sort}, "+0 +1 -1 -y +o0 +1 -1 -0 -e"};
  return f;
}

// Results put back into empty rows, which stand for them here, and those into zeros, in the order of a token's choices;
// all of them cast to fp32, which is saved, and multiplied by the weights; the sums cast. Backward: the sums' gradient
// in fp32, that of the weights, that of the rows, which is cast and gathered twice (between the two put into zeros, for
// the row that was cut off). The rows' gradient is a batched outer product, for which cuBLAS has no good kernel: 6 to 9
// ms for Qwen3-30B-A3B with 65,536 tokens on a B200 (torchtitan pull request 2466), 0.8 to 1.2 G elements/s of a
// multiprocessor, where elements that scatter_add adds are counted at 0.41.
OpFacts batched_moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t wide = times(s.elements, 4), wide_sum = times(s.sum, 2);
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = wide,
          .forward_scratch_bytes = plus(wide_sum, s.rows),
          .backward_scratch_bytes = plus(wide, s.rows),
          .forward_launches = 6,
          .backward_launches = 8,
          .forward_traffic_bytes = plus(10 * s.rows, 5 * s.sum),
          .backward_traffic_bytes = plus(14 * s.rows, 7 * s.sum),
          .backward_scattered = times(s.elements, 2) / 5,
          .forward_inside = {{s.rows, wide_sum}, "+0 +e +1 -e +o -1 -0"},
          .backward_inside = {{wide_sum, wide, s.rows, s.rows}, "+0 -y | +o1 +1 -0 -e +2 -1 +3 -2 +2 -3 +o0 -2"},
          .forward_stopped = {{s.rows}, "+0 +e -0"}};
}

// Not padded. The order, and that divided by k, are kept by the two operators that gather by them. The latter and the
// weights in order are variables of the module, which combine reads.
OpFacts moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t sort = 4 * s.ids;
  return {.saved_extra_bytes = plus(2 * s.ids, s.weights),
          .variable_bytes = plus(s.ids, s.weights),
          .variable_saved_bytes = plus(s.ids, s.weights),
          .backward_scratch_bytes = sort,
          .forward_launches = 9,
          .backward_launches = 8,
          .forward_traffic_bytes = plus(2 * s.rows, 12 * s.ids),
          .backward_traffic_bytes = plus(s.rows, plus(2 * s.sum, 20 * s.ids)),
          .forward_inside = {{}, "+e +o"},
          .backward_inside = {{sort}, "+o0 +0 -0 -y -e"}};
}

// scatter_add among deterministic algorithms, which puts whole rows by sorted indices (PyTorch's since 2026; before,
// and where the index is not the same for a whole row, it sorts one per element).
OpFacts moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t wide = times(s.elements, 4), sort = 4 * s.ids;
  return {.saved_extra_bytes = wide,
          .forward_scratch_bytes = plus(wide, s.rows),
          .backward_scratch_bytes = 3 * wide,
          .forward_launches = 13,
          .backward_launches = 7,
          .forward_traffic_bytes = plus(10 * s.rows, plus(5 * s.sum, 20 * s.ids)),
          .backward_traffic_bytes = 18 * s.rows,
          .forward_inside = {{wide, s.rows, s.sum, sort}, "+2 +e +0 -e +1 -0 -i0 +o +3 -3 -2 -1"},
          .backward_inside = {{s.rows, wide, wide, wide}, "| +0 -y +1 -0 +2 +3 +o1 -3 -e -1 +o0 -2"},
          .forward_stopped = {{wide, s.rows, s.sum}, "+2 +e +0 +1 -0 -i0 -2 -1"}};
}

// As autograd's nodes of a compiled mixture keep it (PyTorch 2.15): of a softmax what it reads, the maximum and the sum
// of each token, of sigmoids the result; the choices and their weights. Softmax, choice, weights: a kernel each.
OpFacts moe_route_compiled(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t scores = times(times(s.tokens, op.shape.experts.count), 4), of_groups = groups_bytes(op, s);
  const bool grouped = op.shape.groups > 1;
  return {.saved_outputs = 0b11,
          .saved_extra_bytes = plus(scores, op.shape.sigmoid ? 0 : times(s.tokens, 8)),
          .wide_outputs = 0b1,
          .forward_scratch_bytes = plus(scores, grouped ? plus(scores, of_groups) : 0),
          .backward_scratch_bytes = 2 * s.weights,
          .forward_launches = static_cast<std::int16_t>(6 + (grouped ? kGroupLaunches : 0)),
          .backward_launches = 4,
          .forward_traffic_bytes = plus(times(grouped ? 6 : 3, scores), 6 * s.weights),
          .backward_traffic_bytes = plus(3 * scores, 6 * s.weights),
          .forward_inside = grouped ? Inside{{scores, of_groups, scores}, "+e +0 +1 +2 -1 -0 +o -2"}
                                    : Inside{{scores}, "+e +0 +o -0"}};
}

OpFacts moe_dispatch_compiled(const Op& op, const Workload& w) {
  OpFacts f = moe_dispatch(op, w);
  f.saved_extra_bytes -= Sizes(op, w).weights;
  f.variable_bytes = f.variable_saved_bytes = 0;
  f.forward_launches = 7, f.backward_launches = 6;
  return f;
}

// The results are kept, weighted and cast in one kernel; both gradients are made in one that gathers.
OpFacts moe_combine_compiled(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t sort = 4 * s.ids;
  return {.saved_inputs = 0b1,
          .forward_scratch_bytes = plus(s.rows, s.sum),
          .forward_launches = 10,
          .backward_launches = 2,
          .forward_traffic_bytes = plus(3 * s.rows, plus(5 * s.sum, 20 * s.ids)),
          .backward_traffic_bytes = plus(4 * s.rows, s.sum),
          .forward_inside = {{s.rows, s.sum, sort}, "+0 -i0 +1 +o +2 -2 -1 -0"}};
}

// The host asks which adapter is in use, and for its factor.
OpFacts adapted_moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = plus(2 * s.ids, s.weights),
          .backward_scratch_bytes = 0,
          .forward_launches = 8,
          .backward_launches = 6,
          .forward_reads = 2,
          .forward_traffic_bytes = plus(2 * s.rows, 12 * s.ids),
          .backward_traffic_bytes = plus(s.rows, plus(s.sum, 12 * s.ids)),
          .backward_scattered = s.elements,
          .forward_inside = {{}, "+e +o"},
          .backward_inside = {{}, "+o0 -y -e"}};
}

OpFacts adapted_moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t wide = times(s.elements, 4);
  OpFacts f = padded_moe_combine(op, w);
  f.forward_launches = 7;
  f.backward_launches = 9;
  f.forward_traffic_bytes = plus(11 * s.rows, 3 * s.sum);
  f.backward_traffic_bytes = 18 * s.rows;
  f.forward_scratch_bytes = plus(wide, s.rows);
  f.forward_inside = {{wide, s.rows, s.sum}, "+e +0 +1 -0 -i0 +2 +o -2 -1"};
  f.backward_inside = {{s.rows, wide, wide, wide}, "| +0 -y +1 -0 +2 +3 +o1 -3 -e -1 +o0 -2"};
  f.forward_stopped = {{wide, s.rows, s.sum}, "+e +0 +1 -0 -i0 +2 -2 -1"};
  return f;
}

}  // namespace fsdp::torchtitan
