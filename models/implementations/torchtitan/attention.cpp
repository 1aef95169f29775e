// Recorded from the same operators (tests/torch/record_saved.py with titan_latent.py), what a compiled flex_attention
// keeps from PyTorch's own partition of it (tests/torch/record_flex.py).
#include "models/implementations/torchtitan/attention.h"

#include <algorithm>

#include "models/implementations/pytorch_ops.h"
#include "models/implementations/torchtitan/gpt_oss.h"

namespace fsdp::torchtitan {
namespace {

using namespace pytorch;

// Keys are joined anew of their own part and of what all heads share, and stay, as a variable, too; values are views,
// for which the projection of both stays. Backward: the gradient of what heads share is a sum over them, and one kernel
// joins those of keys and values.
OpFacts latent_flex_attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = head_bytes(w, s, s.heads), shared = row_bytes(w, s.rotated),
                     v = row_bytes(w, times(s.heads, s.v_head_dim)), kv = plus(q - times(s.heads, shared), v);
  const std::int64_t statistics = times(times(w.tokens(), s.heads), 4);
  return {.saved_inputs = 0b11,
          .saved_outputs = 0b1,
          .saved_extra_bytes = plus(q, statistics),
          .variable_bytes = q,
          .variable_saved_bytes = q,
          .backward_scratch_bytes = plus(statistics, plus(q, v)) - plus(kv, shared),
          .forward_launches = 2,
          .backward_launches = 4,
          .forward_traffic_bytes = plus(plus(4 * q, 2 * v), statistics),
          .backward_traffic_bytes = plus(plus(6 * q, 6 * v), plus(3 * statistics, plus(q, 2 * kv))),
          .result_extra_bytes = statistics,
          .backward_inside = {{statistics, q, v}, "+0 +o0 +1 +2 -0 -y -e -r -i0 -i1 +o2 +o1 -1 -2"},
          .attention = AttentionKernel::flex,
          .forward_copied_bytes = 2 * q,
          .backward_copied_bytes = plus(q, 2 * kv)};
}

}  // namespace

// Kept: q, k, v, the result and the log-sum-exp (fp32 per row and head). Backward: a number per row and head, of the
// result times its gradient, then one kernel for all three gradients, those of k and v as wide as k and v.
OpFacts flex_attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  if (s.v_head_dim > 0) return latent_flex_attention(op, w);
  if (s.sinks) return flex_attention_with_sinks(op, w);
  const std::int64_t q = head_bytes(w, s, s.heads), kv = head_bytes(w, s, s.kv_heads),
                     statistics = times(times(w.tokens(), s.heads), 4);
  return {.saved_inputs = 0b111,
          .saved_outputs = 0b1,
          .saved_extra_bytes = statistics,
          .backward_scratch_bytes = statistics,
          .backward_launches = 2,
          .forward_traffic_bytes = plus(2 * q + 2 * kv, statistics),
          .backward_traffic_bytes = plus(5 * q + 4 * kv, 3 * statistics),
          .result_extra_bytes = statistics,
          .attention = AttentionKernel::flex};
}

OpFacts sdpa_or_latent(const Op& op, const Workload& w) {
  return op.shape.v_head_dim > 0 || op.shape.sinks ? flex_attention(op, w) : sdpa_attention(op, w);
}

// One graph has no variables.
OpFacts flex_attention_compiled(const Op& op, const Workload& w) {
  if (op.shape.sinks) return flex_attention_with_sinks_compiled(op, w);
  OpFacts f = flex_attention(op, w);
  f.variable_bytes = f.variable_saved_bytes = 0;
  return f;
}
OpFacts sdpa_or_latent_compiled(const Op& op, const Workload& w) {
  return op.shape.v_head_dim > 0 || op.shape.sinks ? flex_attention_compiled(op, w) : sdpa_attention(op, w);
}

// Queries and keys are turned by calls of their own, as complex numbers of fp32 copies, each cast again; what was
// turned of q is a variable. Backward copies the angles, conjugated, for each.
OpFacts complex_rotary_of_parts(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const bool cast = w.element_bytes == 2;
  const std::int64_t q = head_bytes(w, s, s.heads), k = row_bytes(w, s.rotated), latent = row_bytes(w, s.in);
  const std::int64_t part = times(s.heads, k), angles = times(w.seq_len, 4 * s.rotated);
  const std::int64_t wide_k = times(row_elements(w, s.rotated), 4), wide_q = times(s.heads, wide_k);  // in fp32
  const std::int64_t copy_q = cast ? wide_q : 0, copy_k = cast ? wide_k : 0;
  const std::int64_t forward =
      std::max({plus(2 * copy_q, part), plus(part, q), plus(plus(part, q), plus(2 * copy_k, k))});
  const std::int64_t of_q = cast ? plus(2 * wide_q, angles) : plus(part, angles);
  const std::int64_t backward = plus(plus(q, latent), std::max(of_q, plus(q, part)));
  const std::int64_t turned = plus(times(4, plus(wide_q, wide_k)), cast ? times(6, plus(part, k)) : 0);
  const Inside wide{{angles, k, part}, "+0 +1 -y1 -0 +o1 -1 +0 +2 -0 +o0 -y -2"},
      narrow{{wide_k, angles, wide_k, k, wide_q, wide_q, part},
             "+0 -y1 +1 +2 -0 -1 +3 -2 +o1 -3 +4 +1 +5 -4 -1 +6 -5 +o0 -y -6"};
  return {.variable_bytes = part,
          .forward_scratch_bytes = std::max<std::int64_t>(forward - plus(q, k), 0),
          .backward_scratch_bytes = std::max<std::int64_t>(backward - plus(2 * q, plus(latent, k)), 0),
          .forward_launches = static_cast<std::int16_t>(cast ? 7 : 3),
          .backward_launches = static_cast<std::int16_t>(cast ? 11 : 8),
          .forward_traffic_bytes = plus(turned, times(2, q)),
          .backward_traffic_bytes = plus(turned, plus(times(2, q), times(2, latent))),
          .forward_inside = {{copy_q, copy_q, copy_k, copy_k}, "+0 +1 -0 -1 +o0 +2 +3 +o1 -2 -3"},
          .backward_inside = cast ? narrow : wide};
}

// Inductor has no code for complex products: the product stays a kernel of its own between two fp32 tensors. The casts
// around it fuse with what joins and parts heads.
OpFacts complex_rotary_of_parts_compiled(const Op& op, const Workload& w) {
  OpFacts f = complex_rotary_of_parts(op, w);
  const std::int64_t part = times(op.shape.heads, row_bytes(w, op.shape.rotated));
  f.variable_bytes = 0;
  f.forward_scratch_bytes = std::max<std::int64_t>(f.forward_scratch_bytes - part, 0);
  f.forward_launches = static_cast<std::int16_t>(w.element_bytes == 2 ? 5 : 3);
  f.backward_launches = static_cast<std::int16_t>(w.element_bytes == 2 ? 6 : 4);
  return f;
}

}  // namespace fsdp::torchtitan
