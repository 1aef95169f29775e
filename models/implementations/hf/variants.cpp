// What few families have in transformers 5, eager, as recorded (tests/torch/record_saved.py): Gemma's and OLMo-2's
// norms, GeGLU, caps and factors, GPT-NeoX' gelu_fast, gpt-oss's SwiGLU, rotary positions in fp32, of packed q, k and
// v, of parts and halves. x: bytes of a result as it is.
#include <algorithm>

#include "models/implementations/pytorch_ops.h"

namespace fsdp::pytorch {

// The weight's product is in fp32 and cast last. Gemma's keeps 1 + weight in fp32, and lets the variance go earlier.
OpFacts wide_rms_norm(const Op& op, const Workload& w) {
  OpFacts f = composed_rms_norm(op, w);
  const bool cast = w.element_bytes == 2;
  const std::int64_t r = times(times(w.tokens(), op.shape.groups), 4), weight = times(op.shape.width, 4);
  if (op.shape.weight_offset == 0) {
    f.forward_scratch_bytes = plus(f.forward_scratch_bytes, r);
    return f;
  }
  f.saved_extra_bytes = plus(f.saved_extra_bytes, weight);
  f.backward_scratch_bytes = std::max<std::int64_t>(f.backward_scratch_bytes - weight, 0);
  f.forward_launches = static_cast<std::int16_t>(cast ? 10 : 7);
  return f;
}

OpFacts geglu(const Op& op, const Workload& w) { return swiglu(op, w); }  // gelu keeps and moves what silu does

// A product with a number saves nothing.
OpFacts scale(const Op& op, const Workload& w) {
  const std::int64_t x = width_bytes(op, w);
  return {.forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 2 * x};
}

// A quotient, tanh, which is saved, and a product.
OpFacts soft_cap(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_extra_bytes = x,
          .forward_launches = 3,
          .backward_launches = 3,
          .forward_traffic_bytes = 6 * x,
          .backward_traffic_bytes = 7 * x,
          .forward_inside = {{x}, "+0 +e -0 +o"},
          .backward_inside = {{x, x}, "+0 -y +1 -0 -e +o -1"}};
}

// x / 2 times one plus tanh of c x (1 + d x x): six factors are saved beside x.
OpFacts gelu_fast(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = 6 * x,
          .backward_scratch_bytes = x,
          .forward_launches = 9,
          .backward_launches = 13,
          .forward_traffic_bytes = times(x, 20),
          .backward_traffic_bytes = times(x, 36)};
}

// Cosines and sines in fp32 make every product fp32, and a cast ends it.
OpFacts wide_rotary(const Op& op, const Workload& w) {
  if (w.element_bytes != 2) return composed_rotary(op, w);
  const std::int64_t x = head_bytes(w, op.shape, op.shape.heads);
  return {.forward_scratch_bytes = 5 * x,
          .backward_scratch_bytes = 4 * x,
          .forward_launches = 6,
          .backward_launches = 9,
          .forward_traffic_bytes = times(x, 17),
          .backward_traffic_bytes = times(x, 23)};
}

// q and k are views. Phi-3 joins what turned with the rest of each head, even where there is none; the gradients of
// its slices are zeros that are copied into, one after the other. GPT-NeoX turns q and k before it joins either, and
// one kernel joins the gradients; that of v, which comes from attention, counts as a whole one of q, k and v there.
OpFacts packed_rotary(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = head_bytes(w, s, s.heads), k = head_bytes(w, s, s.kv_heads), made = plus(q, k),
                     full = plus(q, 2 * k), channels = s.rotated > 0 ? s.rotated : s.head_dim;
  const std::int64_t q_part = q / s.head_dim * channels, k_part = k / s.head_dim * channels;
  OpFacts f{.forward_launches = 12, .backward_launches = 15};
  const std::int64_t turned = plus(q_part, k_part);
  f.forward_traffic_bytes = plus(times(turned, 10), 2 * made);
  f.backward_traffic_bytes = plus(plus(times(turned, 13), 4 * made), 4 * full);
  if (s.interleaved) {
    f.forward_scratch_bytes = std::max({3 * q_part, q_part + 3 * k_part, turned + q, k_part + made}) - made;
    f.backward_scratch_bytes = k;
    return f;
  }
  f.forward_scratch_bytes = std::max({3 * q_part, q_part + q, q + 3 * k_part, q + k_part + k, made}) - made;
  f.backward_scratch_bytes = 2 * full - made;
  return f;
}

// q and k of which a part of each head turns, in one function: both parts are turned, and each is joined with the rest
// of its heads; backward turns the parts' gradients, first of k, and adds slices' gradients, zeros that are copied
// into.
OpFacts rotary_of_parts(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = head_bytes(w, s, s.heads), k = head_bytes(w, s, s.kv_heads);
  const std::int64_t q_part = q / s.head_dim * s.rotated, k_part = k / s.head_dim * s.rotated;
  const std::int64_t parts = plus(q_part, k_part), both = plus(q, k);
  const std::int64_t forward = std::max({3 * q_part, q_part + 3 * k_part, parts + q, q + k_part + k});
  const std::int64_t backward = std::max({both + k_part + 3 * q_part, q + q_part + 3 * k, 3 * q + k});
  return {.forward_scratch_bytes = std::max<std::int64_t>(forward - both, 0),
          .backward_scratch_bytes = std::max<std::int64_t>(backward - times(2, both), 0),
          .forward_launches = 12,
          .backward_launches = 14,
          .forward_traffic_bytes = plus(times(parts, 10), times(2, both)),
          .backward_traffic_bytes = plus(times(parts, 13), times(9, both)),
          .forward_inside = {{times(3, q_part), q_part, times(3, k_part), k_part}, "+0 -0 +1 +2 -2 +3 +o0 -1 +o1 -3"},
          .backward_inside = {{times(3, k_part), k_part, times(3, q_part), q_part, k, k, q, q},
                              "+0 -0 +1 +2 -2 +3 +4 -y1 +5 -1 +o1 -4 -5 +6 -y +7 -3 +o0 -6 -7"}};
}

// Of q a part of each head, and what all heads' keys share, the end of a latent's rows; pairs of neighbours turn. What
// was turned of q is a variable. Backward turns k's gradient first; that of the latent is made as large as the latent.
OpFacts latent_rotary(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = head_bytes(w, s, s.heads), k = row_bytes(w, s.rotated), latent = row_bytes(w, s.in);
  const std::int64_t part = times(s.heads, k), turned = plus(part, k);
  const std::int64_t forward = std::max({2 * part, part + 2 * k, turned + q});
  const std::int64_t backward = std::max(q + k + 3 * part, 2 * q + part + latent);
  return {.variable_bytes = part,
          .forward_scratch_bytes = std::max<std::int64_t>(forward - plus(q, k), 0),
          .backward_scratch_bytes = std::max<std::int64_t>(backward - plus(2 * q, plus(latent, k)), 0),
          .forward_launches = 15,
          .backward_launches = 18,
          .forward_traffic_bytes = plus(times(turned, 11), times(2, q)),
          .backward_traffic_bytes = plus(times(turned, 21), plus(times(4, q), times(2, latent))),
          .forward_inside = {{part, 2 * k}, "+0 -0 +1 -1 +o1 +o0"},
          .backward_inside = {{2 * k, k, 2 * part, part, 2 * part}, "+0 -0 +1 -y1 +2 -2 +3 +4 -4 +o1 -1 +o0 -y -3"}};
}

// The same of DeepSeek-V2: pairs are complex numbers of fp32 copies, turned by one product and cast again; backward
// copies the table of angles, conjugated, for each. Kept in fp32 they are views, but that q's gradient is copied.
OpFacts complex_latent_rotary(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const bool cast = w.element_bytes == 2;
  const std::int64_t q = head_bytes(w, s, s.heads), k = row_bytes(w, s.rotated), latent = row_bytes(w, s.in);
  const std::int64_t part = times(s.heads, k), angles = times(w.seq_len, 4 * s.rotated);
  const std::int64_t wide_k = times(row_elements(w, s.rotated), 4), wide_q = times(s.heads, wide_k);  // in fp32
  const std::int64_t casts = cast ? plus(wide_q, wide_k) : 0, product_q = cast ? wide_q : 0,
                     product_k = cast ? wide_k : 0;
  const std::int64_t forward = std::max(plus(casts, plus(part, std::max(product_q, plus(product_k, k)))), part + k + q);
  const std::int64_t backward = std::max(q + wide_k + 2 * wide_q + angles, 2 * q + part + latent);
  const std::int64_t turned = plus(times(4, plus(wide_q, wide_k)), cast ? times(6, plus(part, k)) : 0);
  const Inside wide{{angles, k, part, part, q}, "+0 +1 -y1 -0 +2 +0 +3 -2 -0 +o1 -1 +4 -y -3 +o0 -4"},
      narrow{{wide_k, angles, wide_k, wide_q, wide_q, k, part, q},
             "+0 -y1 +1 +2 -0 -1 +3 +1 +4 -3 -1 +5 -2 +6 -4 +o1 -5 +7 -y -6 +o0 -7"};
  return {.variable_bytes = part,
          .forward_scratch_bytes = std::max<std::int64_t>(forward - plus(q, k), 0),
          .backward_scratch_bytes = std::max<std::int64_t>(backward - plus(2 * q, plus(latent, k)), 0),
          .forward_launches = static_cast<std::int16_t>(cast ? 7 : 3),
          .backward_launches = static_cast<std::int16_t>(cast ? 10 : 7),
          .forward_traffic_bytes = plus(turned, times(2, q)),
          .backward_traffic_bytes = plus(turned, plus(times(4, q), times(2, latent))),
          .forward_inside = {{casts, product_q, product_k}, "+0 +1 -1 +2 +o1 -2 -0 +o0"},
          .backward_inside = cast ? narrow : wide};
}

// The halves of a head are turned by four products, and joined head by head. Backward joins their gradients again, and
// copies that into x's layout.
OpFacts halved_rotary(const Op& op, const Workload& w) {
  const std::int64_t x = head_bytes(w, op.shape, op.shape.heads), half = x / 2;
  return {.forward_scratch_bytes = x,
          .backward_scratch_bytes = x,
          .forward_launches = 7,
          .backward_launches = 9,
          .forward_traffic_bytes = times(x, 9),
          .backward_traffic_bytes = times(x, 12),
          .forward_inside = {{half, x, half}, "+0 +1 +2 -1 +o -0 -2"},
          .backward_inside = {{2 * x, x + half, x, x}, "+0 -0 +1 -y -1 +2 +3 -2 +o -3"}};
}

// gpt-oss's: gate and up, every other column each, are limited; (up + 1) times gate times the sigmoid of alpha gate.
// The limited gate, the sigmoid and both factors of the result are saved. Backward: the factors' gradients, the
// sigmoid's, those of the limits (`n`: a byte per element, of masks), and each column's put between zeros.
OpFacts clamped_swiglu(const Op& op, const Workload& w) {
  const std::int64_t x = width_bytes(op, w), n = x / w.element_bytes;
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = times(x, 4),
          .forward_scratch_bytes = x,
          .forward_launches = 7,
          .backward_launches = 16,
          .forward_traffic_bytes = times(x, 18),
          .backward_traffic_bytes = plus(times(x, 46), times(n, 7)),
          .backward_inside = {{x, x, 2 * x, 2 * x, x, 2 * x, 2 * x, plus(x, 2 * n)},
                              "+0 +1 -y -e +2 +3 -1 -2 -3 +4 +7 -7 -i0 +5 -0 +6 -4 +o -5 -6"}};
}

// A router's, of x and weight cast to fp32, which are both kept: x for the weight's gradient. Backward makes both
// gradients in fp32, that of the weight first, and casts them; the cast one counts from the beginning.
OpFacts linear_in_fp32(const Op& op, const Workload& w) {
  const std::int64_t x = row_elements(w, op.shape.in), weight = times(op.shape.in, op.shape.out),
                     y = row_elements(w, op.shape.out), bytes = times(4, plus(plus(x, weight), y));
  const std::int64_t casts = times(6, plus(x, weight));
  return {.saved_extra_bytes = times(4, plus(x, weight)),
          .saved_for_weight_bytes = times(4, x),
          .wide_outputs = 0b1,
          .backward_scratch_bytes = times(2, plus(x, weight)),
          .forward_launches = 3,
          .backward_launches = 4,
          .forward_traffic_bytes = plus(bytes, casts),
          .backward_traffic_bytes = plus(times(2, bytes), casts),
          .backward_inside = {{times(2, weight), times(4, x)}, "+0 +1 -y -e -0 +o -1"}};
}

}  // namespace fsdp::pytorch
