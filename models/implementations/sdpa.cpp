// PyTorch's scaled_dot_product_attention, by the kernel that it takes on a GPU: flash (or cuDNN's); where there is
// none, products and a softmax; with a mask the memory-efficient one. q and kv: bytes of queries, and of keys or
// values.
#include <algorithm>

#include "models/implementations/pytorch_ops.h"

namespace fsdp::pytorch {
namespace {

// q, k and v apart, of which v may be a view of packed ones.
bool takes_packed_v(const Op& op) { return op.shape.packed && op.inputs.size() == 2; }

// Where heads share keys, fused kernels are for 16 bits alone: in fp32 flash and cuDNN have none, and the
// memory-efficient one takes no grouped heads (enable_gqa). PyTorch then multiplies out, without a word
// (transformers issue 48633).
bool multiplies_out(const Op& op, const Workload& w) {
  const bool apart = !op.shape.packed || takes_packed_v(op);
  return w.element_bytes > 2 && op.shape.kv_heads != op.shape.heads && apart;
}

// softmax(q k^T + mask) v (_scaled_dot_product_attention_math). Saved: q and k, each times the root of the scale, k and
// v repeated to all heads, and the probabilities. s: bytes of the scores. Beside that a causal mask as long as wide,
// and k before it was scaled; queries of several sequences are copied for the product. Worst moments: forward, the
// softmax (scores, and which of them are minus infinity, a byte each and one per row) or the end; backward, that of the
// softmax, or of the products.
OpFacts multiplied_out(const Op& op, const Workload& w) {
  const OpShape& o = op.shape;
  const std::int64_t q = head_bytes(w, o, o.heads), kv = head_bytes(w, o, o.kv_heads);
  const std::int64_t rows = times(w.tokens(), o.heads), s = times(times(rows, w.seq_len), w.element_bytes);
  const std::int64_t mask = times(times(w.seq_len, w.seq_len), w.element_bytes);
  const bool packed = takes_packed_v(op), by_head = packed || o.by_head, copied = w.sequences > 1 && !by_head;
  const std::int64_t gradients = packed ? 3 * plus(q, kv) : 2 * plus(q, kv);  // of v: as large as q, k and v
  const std::int64_t softmax = plus(s, plus(times(rows, w.seq_len), rows));
  return {.saved_extra_bytes = plus(s, times(q, 3)),
          .forward_scratch_bytes = plus(plus(std::max(softmax, q), mask), copied ? q : 0),
          .backward_scratch_bytes = std::max<std::int64_t>(std::max(times(s, 2), plus(s, 2 * q)) - gradients, 0),
          .forward_launches = static_cast<std::int16_t>(copied ? 19 : 18),
          .backward_launches = static_cast<std::int16_t>((by_head ? 10 : 12) + (w.sequences > 1 ? 1 : 0)),
          .forward_traffic_bytes = plus(times(s, 10), times(q, copied ? 12 : 10)),
          .backward_traffic_bytes = plus(times(s, 7), times(q, 14)),
          .saves_factors = !packed,
          .attention = AttentionKernel::math};
}

}  // namespace

// Of q and k that stand head by head flash's result does, too, and stays beside its copy in the order of tokens.
OpFacts with_copied_result(OpFacts f, const Op& op, const Workload& w) {
  const std::int64_t out = head_bytes(w, op.shape, op.shape.heads);
  f.saved_outputs = 0;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, out);
  f.forward_launches = static_cast<std::int16_t>(f.forward_launches + 1);
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * out);
  return f;
}

// The memory-efficient kernel, which fp32 takes, always makes its result in the order of tokens.
OpFacts sdpa_attention(const Op& op, const Workload& w) {
  if (multiplies_out(op, w)) return multiplied_out(op, w);
  if (takes_packed_v(op)) return attention_of_packed_v(op, w);
  const bool copied = op.shape.by_head && w.element_bytes == 2;
  return copied ? with_copied_result(flash_attention(op, w), op, w) : flash_attention(op, w);
}

// Flash (or cuDNN) attention saves q, k, v, out and the log-sum-exp (fp32 per row and head). Backward
// (FlashAttention-2): delta (fp32 per row and head) and an fp32 accumulator of dq; with grouped heads dk and dv for all
// heads, which two sums reduce. Three kernels, plus the sums. A packed qkv is split by views; backward joins dq, dk and
// dv in one more.
OpFacts flash_attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)), kv = row_bytes(w, times(s.kv_heads, s.head_dim));
  const std::int64_t statistics = times(times(w.tokens(), s.heads), 4),
                     q_fp32 = times(row_elements(w, times(s.heads, s.head_dim)), 4);
  const bool grouped = s.kv_heads != s.heads && !s.packed;
  return {
      .saved_inputs = static_cast<std::uint8_t>(s.packed ? 0b1 : 0b111),
      .saved_outputs = 0b1,
      .saved_extra_bytes = statistics,
      .backward_scratch_bytes = plus(plus(statistics, q_fp32), grouped ? 2 * q : 0),
      .backward_launches = static_cast<std::int16_t>(grouped    ? 5
                                                     : s.packed ? 4
                                                                : 3),
      .forward_traffic_bytes = plus(2 * q + 2 * kv, statistics),
      .backward_traffic_bytes = plus(plus(4 * q + 4 * kv, plus(2 * statistics, 2 * q_fp32)), grouped    ? 4 * q
                                                                                             : s.packed ? 2 * q + 4 * kv
                                                                                                        : 0),
      .result_extra_bytes = statistics};
}

// v is a view of the packed q, k and v, which stay for it. Its gradient is copied into zeros of their size. q and k
// were joined anew, head by head.
OpFacts attention_of_packed_v(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  Op apart = op;
  apart.shape.packed = false;
  OpFacts f = flash_attention(apart, w);
  const std::int64_t v = head_bytes(w, s, s.kv_heads), full = plus(head_bytes(w, s, s.heads), 2 * v);
  f.saved_inputs = 0b11;
  f.backward_launches = static_cast<std::int16_t>(f.backward_launches + 2);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, plus(full, 2 * v));
  f.backward_inside = {{f.backward_scratch_bytes, v}, "+0 +o0 +1 -0 -y -i0 -i1 -r -e +o1 -1"};
  return with_copied_result(f, op, w);
}

// Latent attention: keys are joined anew, head by head, of their own part and of what all heads share, and stay;
// values are views, for which the projection of both stays. On Hopper and data center Blackwell cuDNN has such heads;
// the memory-efficient kernel, which other GPUs take, would make its result in the order of tokens, without a copy.
// Backward: beside the kernel's three gradients two copies of that of the keys, and of each part of them.
OpFacts latent_attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = head_bytes(w, s, s.heads), shared = row_bytes(w, s.rotated), ends = times(s.heads, shared),
                     own = q - ends, v = row_bytes(w, times(s.heads, s.v_head_dim)), kv = plus(own, v);
  const std::int64_t statistics = times(times(w.tokens(), s.heads), 4),
                     inside = plus(statistics, times(row_elements(w, times(s.heads, s.head_dim)), 4));
  const bool copied = w.element_bytes == 2;
  return {.saved_inputs = 0b11,
          .saved_outputs = static_cast<std::uint8_t>(copied ? 0 : 0b1),
          .saved_extra_bytes = plus(plus(q, copied ? v : 0), statistics),
          .variable_bytes = q,
          .variable_saved_bytes = q,
          .backward_scratch_bytes = plus(inside, plus(q, v)) - plus(kv, shared),
          .forward_launches = static_cast<std::int16_t>(copied ? 4 : 3),
          .backward_launches = 12,
          .forward_traffic_bytes = plus(plus(4 * q, 2 * v), plus(statistics, copied ? 2 * v : 0)),
          .backward_traffic_bytes = plus(plus(plus(8 * q, 4 * v), plus(2 * inside, 5 * ends)), plus(2 * own, 4 * kv)),
          .result_extra_bytes = statistics,
          .backward_inside = {{inside, q, v, q, ends, ends, q, own},
                              "+0 +o0 +1 +2 -0 -y -e -r -i0 -i1 +3 +4 +5 -5 -1 +6 +7 -3 -6 +o2 -4 +o1 -7 -2"},
          .forward_copied_bytes = plus(2 * q, copied ? 2 * v : 0),
          .backward_copied_bytes = plus(plus(4 * q, 5 * ends), plus(2 * own, 4 * kv))};
}

// A mask becomes a bias in the type of q, a matrix per sequence that stays for backward, and the memory-efficient
// kernel takes q, k and v of all heads: grouped ones are copied, a single one is repeated by strides. Beside copies of
// k and v packed ones need not stay, and of what turned only q.
OpFacts masked_attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = head_bytes(w, s, s.heads), kv = head_bytes(w, s, s.kv_heads);
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  const std::int64_t bias = times(times(times(w.sequences, w.seq_len), up(w.seq_len, 16)), w.element_bytes),
                     statistics = times(times(times(w.sequences, s.heads), up(w.seq_len, 32)), 4),
                     q_fp32 = times(row_elements(w, times(s.heads, s.head_dim)), 4);
  const bool grouped = s.kv_heads != s.heads, copies = grouped && s.kv_heads > 1;
  const bool packed = s.packed && op.inputs.size() == 2;
  const std::int64_t full = packed ? plus(q, 2 * kv) : 0;
  return {.saved_inputs = static_cast<std::uint8_t>(packed   ? (copies ? 0 : 0b11)
                                                    : copies ? 0b1
                                                             : 0b111),
          .saved_outputs = 0b1,
          .saved_extra_bytes = plus(plus(statistics, bias), copies ? (packed ? 3 : 2) * q : 0),
          .backward_scratch_bytes = plus(plus(statistics, q_fp32), plus(grouped ? 2 * (q - kv) : 0, packed ? kv : 0)),
          .forward_launches = static_cast<std::int16_t>(copies ? 6 : 4),
          .backward_launches = static_cast<std::int16_t>((grouped ? 5 : 3) + (packed ? 2 : 0)),
          .forward_traffic_bytes = plus(plus(2 * q + 2 * kv, statistics), plus(3 * bias, copies ? 4 * q : 0)),
          .backward_traffic_bytes =
              plus(plus(plus(4 * q + 4 * kv, plus(2 * statistics, 2 * q_fp32)), plus(bias, grouped ? 4 * q : 0)), full),
          .result_extra_bytes = statistics,
          .attention = AttentionKernel::masked};
}

}  // namespace fsdp::pytorch
