// Mixtures of experts in transformers 4, as 4.45 to 4.50 have Mixtral's and OLMoE's: Python goes over the experts. Each
// finds its rows by torch.where, for which the host waits for the device, gathers them, multiplies them by its three
// matrices, weights them, and adds them to the sum in place. Counted and recorded with transformers 4.48
// (tests/torch/early/record_hf_experts.py). 4.57 reads first which experts have rows, and each one's number.
#include "models/graph/experts.h"
#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

struct Sizes {
  Sizes(const Op& op, const Workload& w)
      : tokens(w.tokens()),
        choices(times(tokens, op.shape.experts.top_k)),
        rows(fsdp::rows(op.shape.experts, w)),
        ids(times(rows, 16)),
        bytes(times(rows, times(op.shape.width, w.element_bytes))),
        sum(times(tokens, times(op.shape.width, w.element_bytes))) {
    require_all_tokens(op, "hf-4");
  }
  std::int64_t tokens, choices, rows;  // elements
  std::int64_t ids, bytes, sum;        // bytes: two int64 of each row, of the rows, of a row per token
};

// Kernels of one operator (ATen's Nonzero.cu and Indexing.cu): nonzero sums the numbers that are not zero, which is
// what the host reads, and selects; index_put that adds makes one index, sorts it, and adds by it.
constexpr int kNonzero = 5, kIndexPut = 7;

// As in transformers 5; weights are cast in any case. Then the sum's zeros, and a mask of int64 of each expert, choice
// and token (zeros and a scatter), which lives as long as the mixture runs.
OpFacts moe_route(const Op& op, const Workload& w) {
  OpFacts f = grouped_moe_route(op, w);
  const std::int64_t mask = times(times(w.tokens(), op.shape.experts.top_k), times(op.shape.experts.count, 8));
  f.variable_bytes = mask;
  f.returns_variables = true;
  f.forward_launches += 3;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, mask);
  return f;
}

// Where the expert's rows come from, which stays, and is a variable until the next expert finds its own. Backward adds
// the rows' gradients into zeros.
OpFacts moe_dispatch(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t mask = times(s.choices, 8), sort = times(s.rows, 32);
  return {.saved_extra_bytes = s.ids,
          .variable_bytes = s.ids,
          .variable_saved_bytes = s.ids,
          .backward_scratch_bytes = sort,
          .forward_launches = kNonzero + 1,
          .backward_launches = kIndexPut + 1,
          .forward_reads = 1,
          .forward_traffic_bytes = plus(plus(times(2, mask), times(2, s.ids)), times(2, s.bytes)),
          .backward_traffic_bytes = plus(plus(s.sum, times(3, s.bytes)), times(5, sort)),
          .forward_inside = {{}, "+e +o"},
          .backward_inside = {{sort}, "+o0 +0 -0 -y -e"}};
}

OpFacts expert_linear(const Op& op, const Workload& w) {
  const std::int64_t n = rows(op.shape.experts, w), in = op.shape.in, out = op.shape.out;
  const std::int64_t bytes = times(plus(plus(times(n, in), times(in, out)), times(n, out)), w.element_bytes);
  return {
      .saved_inputs = 0b1, .backward_launches = 2, .forward_traffic_bytes = bytes, .backward_traffic_bytes = 2 * bytes};
}

// The weights of the rows, gathered; the product with them, which is a variable until the next expert's; the sum in
// place. Kept: the rows, their weights and the product, of which aten::index_add asks for the size. Backward: the sum's
// gradient is gathered, times weights and times rows; the latter is summed up and put among zeros. A recomputation ends
// before it adds.
OpFacts moe_combine(const Op& op, const Workload& w) {
  const Sizes s(op, w);
  const std::int64_t weights = times(s.rows, w.element_bytes), all = times(s.choices, w.element_bytes);
  const std::int64_t sort = times(s.rows, 32);
  OpFacts f{.saved_inputs = 0b1,
            .saved_extra_bytes = plus(weights, s.bytes),
            .variable_bytes = s.bytes,
            .variable_saved_bytes = s.bytes,
            .forward_scratch_bytes = 0,
            .backward_scratch_bytes = plus(s.bytes, s.bytes),
            .forward_launches = 3,
            .backward_launches = kIndexPut + 5,
            .forward_traffic_bytes = plus(times(5, s.bytes), plus(times(2, s.ids), times(2, weights))),
            .backward_traffic_bytes = plus(times(8, s.bytes), plus(plus(times(4, weights), all), times(5, sort))),
            .forward_inside = {{}, "+e -i0 +o"},
            .backward_inside = {{s.bytes, s.bytes, weights, sort}, "+0 +o0 +1 -0 -i0 +2 -1 +o1 +3 -3 -2 -e"},
            .forward_stopped = {{}, "+e"}};
  if (op.inputs.size() == 4) f.forward_inside = {{}, "+e -i0 -i3 +o"};
  return f;
}

// Of families whose experts transformers 4 chose or multiplied in another way.
std::string_view lacks(const Op& op) {
  const OpShape& s = op.shape;
  if (op.kind == OpKind::moe_route && (s.sigmoid || s.of_chosen || s.groups > 1 || s.in_fp32))
    return "experts of this family, as transformers 4 computes them";
  if (op.kind == OpKind::expert_linear && (s.transposed || op.params.size() > 1)) return "experts with biases";
  return hf_implementation(false).lacks(op);
}

}  // namespace

const Implementation& hf_4_implementation() {
  static const Implementation one = [] {
    Implementation i = hf_implementation(false);
    i.name = "hf-4";
    i.own_form = with_looped_experts;
    i.lacks = lacks;
    i.host_seconds_per_read = 17e-6;  // as prime-rl's (docs/costs.md)
    const auto set = [&](OpKind kind, OpRule rule) { i.rules[static_cast<std::size_t>(kind)] = rule; };
    set(OpKind::moe_route, moe_route);
    set(OpKind::moe_dispatch, moe_dispatch);
    set(OpKind::expert_linear, expert_linear);
    set(OpKind::moe_combine, moe_combine);
    return i;
  }();
  return one;
}

}  // namespace fsdp
