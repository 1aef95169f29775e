// Recorded from the same operators (tests/torch/record_titan_gpt_oss.py).
#include "models/implementations/torchtitan/gpt_oss.h"

#include <algorithm>

#include "models/implementations/pytorch_ops.h"

namespace fsdp::torchtitan {
namespace {

using namespace pytorch;

std::int64_t results(const Op& op, const Workload& w) { return times(rows(op.shape.experts, w), op.shape.out); }

}  // namespace

// The log-sum-exp less the head's sink, its sigmoid in fp32, cast, times the kernel's result: the kernel keeps q, k, v,
// its result and the log-sum-exp, the product that result and the factor, the sigmoid itself (s: bytes of a number in
// fp32 per row and head). Backward: both gradients of the product, of which the factor's is summed over a head's
// channels, then the sigmoid's, the sinks', and the kernel's.
OpFacts flex_attention_with_sinks(const Op& op, const Workload& w) {
  const OpShape& o = op.shape;
  const std::int64_t q = head_bytes(w, o, o.heads), kv = head_bytes(w, o, o.kv_heads),
                     numbers = times(w.tokens(), o.heads), s = times(numbers, 4),
                     factor = times(numbers, w.element_bytes);
  return {.saved_inputs = 0b111,
          .saved_extra_bytes = plus(q, plus(times(2, s), factor)),
          .backward_scratch_bytes = plus(times(2, q), plus(times(2, s), factor)),
          .forward_launches = 5,
          .backward_launches = 10,
          .forward_traffic_bytes = plus(plus(times(4, q), times(2, kv)), plus(times(6, s), times(2, factor))),
          .backward_traffic_bytes = plus(plus(times(11, q), times(4, kv)), plus(times(10, s), times(4, factor))),
          .result_extra_bytes = s,
          .forward_inside = {{s, s}, "+e +o"},
          .backward_inside = {{q, q, factor, s, s}, "+0 +1 -y +2 -1 +3 -2 +4 +o -4 -3 -0 -e"},
          .attention = AttentionKernel::flex,
          .forward_copied_bytes = times(2, q),
          .backward_copied_bytes = times(6, q)};
}

// What is beside the kernel is one more; the sigmoid is made again.
OpFacts flex_attention_with_sinks_compiled(const Op& op, const Workload& w) {
  const OpShape& o = op.shape;
  const std::int64_t q = head_bytes(w, o, o.heads), kv = head_bytes(w, o, o.kv_heads),
                     s = times(times(w.tokens(), o.heads), 4);
  return {.saved_inputs = 0b111,
          .saved_extra_bytes = plus(q, s),
          .backward_scratch_bytes = plus(q, times(2, s)),
          .forward_launches = 2,
          .backward_launches = 5,
          .forward_traffic_bytes = plus(plus(times(4, q), times(2, kv)), times(2, s)),
          .backward_traffic_bytes = plus(plus(times(9, q), times(4, kv)), times(6, s)),
          .result_extra_bytes = s,
          .forward_inside = {{}, "+e +o"},
          .backward_inside = {{q, s, s}, "+1 +0 -y +2 +o -2 -0 -1 -e"},
          .attention = AttentionKernel::flex,
          .forward_copied_bytes = times(2, q),
          .backward_copied_bytes = times(4, q)};
}

// The bias of each row, gathered by an index that repeat_interleave makes and autograd keeps, is a variable until the
// experts return (the second product's goes then at once), and is added to the product. Its gradient is added row by
// row into zeros (aten::index_add, whose kernel takes element by element, as aten::scatter_add does).
OpFacts expert_linear(const Op& op, const Workload& w) {
  OpFacts f = grouped_expert_linear(op, w);
  if (op.params.size() < 2) return f;
  const std::int64_t n = results(op, w), y = times(n, w.element_bytes), ids = times(rows(op.shape.experts, w), 8),
                     biases = times(times(op.shape.out, op.shape.experts.count + 1), w.element_bytes),
                     x = times(times(rows(op.shape.experts, w), op.shape.in), w.element_bytes),
                     weights = times(times(times(op.shape.in, op.shape.out), op.shape.experts.count), w.element_bytes),
                     product = plus(plus(x, y), weights);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = ids,
          .variable_bytes = op.shape.packed ? y : 0,
          .forward_scratch_bytes = plus(y, biases),
          .backward_scratch_bytes = std::max<std::int64_t>(biases - x, 0),
          .forward_launches = 6,
          .backward_launches = 5,
          .forward_traffic_bytes = plus(product, plus(times(5, y), plus(times(3, biases), ids))),
          .backward_traffic_bytes = plus(times(2, product), plus(times(2, y), plus(times(3, biases), ids))),
          .backward_scattered = n,
          .forward_inside = op.shape.packed ? Inside{{y}, "+0 +e +o -0"} : Inside{{y, y}, "+0 -i0 +1 +e +o -0 -1"},
          .backward_inside = {{biases}, "+o -i0 +0 -0 -y -e"}};
}

// The sum with the bias is a part of the kernel that reads it, and one index serves both products (swiglu_compiled).
OpFacts expert_linear_compiled(const Op& op, const Workload& w) {
  OpFacts f = grouped_expert_linear(op, w);
  if (op.params.size() < 2) return f;
  const OpFacts eager = expert_linear(op, w);
  const std::int64_t n = results(op, w), y = times(n, w.element_bytes);
  OpFacts c{.saved_inputs = 0b1,
            .backward_scratch_bytes = eager.backward_scratch_bytes,
            .forward_launches = 2,
            .backward_launches = 4,
            .forward_traffic_bytes = eager.forward_traffic_bytes - times(4, y),
            .backward_traffic_bytes = eager.backward_traffic_bytes,
            .backward_scattered = n};
  c.backward_inside = {{eager.backward_scratch_bytes}, "+o -i0 +0 -0 -y"};
  return c;
}

OpFacts swiglu(const Op& op, const Workload& w) {
  return op.shape.clamped ? clamped_swiglu(op, w) : pytorch::swiglu(op, w);
}

OpFacts swiglu_compiled(const Op& op, const Workload& w) {
  OpFacts f = pytorch::swiglu_compiled(op, w);
  if (op.shape.clamped) f.saved_extra_bytes = plus(f.saved_extra_bytes, times(rows(op.shape.experts, w), 8));
  return f;
}

// x in fp32, times cosines; its halves turned, times sines; their sum, cast. Backward the same way, and a copy.
OpFacts cos_sin_rotary(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, times(op.shape.heads, op.shape.head_dim)), wide = times(n, 4),
                     x = times(n, w.element_bytes);
  return {.forward_scratch_bytes = times(4, wide),
          .backward_scratch_bytes = times(3, wide),
          .forward_launches = 7,
          .backward_launches = 9,
          .forward_traffic_bytes = plus(times(11, wide), times(2, x)),
          .backward_traffic_bytes = plus(times(14, wide), times(2, x))};
}

}  // namespace fsdp::torchtitan
