// Mixtures of experts in prime-rl's own models of January 2026, which are torchtitan's of August 2025: choices are
// sorted by expert, their rows gathered, padded to eight per expert by a second gather, multiplied in one grouped
// launch per matrix, put back, weighted in fp32, and added to zeros. With adapters of experts rows are not padded, and
// so neither gathered twice nor put back. Recorded from the same operators (tests/torch/record_saved.py). C: choices,
// h: width of a row.
//
// The padding, 8 rows more per expert, is left out. In 16 bits: others have no casts.
#include "models/implementations/prime_rl.h"
#include "models/implementations/pytorch_ops.h"
#include "models/input/error.h"

namespace fsdp::prime_rl {
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
    if (op.shape.experts.capacity_factor != 1)
      throw InputError(setting("implementation"),
                       "prime-rl drops no tokens: a capacity_factor other than 1 has no meaning there",
                       "leave it out of the config");
  }
  std::int64_t tokens, choices;
  std::int64_t ids, weights;  // bytes of an index (int64) and of a weight (fp32) per choice
  std::int64_t elements;      // of the choices' rows
  std::int64_t sum, rows;     // bytes of a row per token and per choice
};

}  // namespace

// Softmax in fp32, which is saved, as are the choices' indices; where weights are renormalised, the weights and the
// sums that they are divided by. They are multiplied by a factor in any case. Two histograms count rows per expert.
// GLM's scores are sigmoids, to which a bias is added for the choice, and whose weights are gathered again.
OpFacts moe_route(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const bool renormalised = op.shape.renormalised;
  const std::int64_t logits = times(s.tokens, op.shape.experts.count), probabilities = times(logits, 4);
  return {.saved_outputs = 0b10,
          .saved_extra_bytes = plus(probabilities, renormalised ? plus(times(s.tokens, 4), s.weights) : 0),
          .wide_outputs = 0b1,
          .forward_scratch_bytes = probabilities,
          .backward_scratch_bytes = plus(2 * probabilities, 3 * s.weights),
          .forward_launches = static_cast<std::int16_t>((op.shape.sigmoid ? 11 : 9) + (renormalised ? 3 : 0)),
          .backward_launches = static_cast<std::int16_t>(5 + (renormalised ? 6 : 0)),
          .forward_traffic_bytes = plus(times(logits, 2 + 16), 10 * s.weights),
          .backward_traffic_bytes = plus(times(logits, 2 + 24), 24 * s.weights),
          .forward_inside = {{probabilities}, "+0 +e -0 +o"}};
}

// Stable sort, the order divided by k, weights gathered by the order, rows by the divided order; a row of zeros put
// below them and all gathered again by int32 indices. Saved: the indices and the weights in order. The rows as gathered
// first stay variables of the module. Backward puts the gradient into zeros (sorted), and adds that to zeros. 14 of the
// launches find the padded order.
OpFacts moe_dispatch(const Op& op, const Workload& w) {
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
OpFacts moe_combine(const Op& op, const Workload& w) {
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
  OpFacts f = moe_combine(op, w);
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

}  // namespace fsdp::prime_rl
