// Our executor's kernels (executor/kernels*.cpp): storage in one type of `element_bytes`, arithmetic in double for
// double and in float otherwise (the accumulate type). Every number here is what those kernels really take; the
// executor reports heap or saved bytes that are not declared here as an error.
#include <algorithm>

#include "models/implementation.h"
#include "models/implementations/pytorch_ops.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::int64_t accumulate_bytes(const Workload& w) { return w.element_bytes == 8 ? 8 : 4; }
std::int64_t times(std::int64_t a, std::int64_t b) { return checked_mul(a, b, kOpSize); }
std::int64_t row_bytes(const Workload& w, std::int64_t width) {
  return times(times(w.tokens(), width), w.element_bytes);
}

// Reads ids, writes rows; backward sorts the positions by id (8 bytes each) and writes each row of the weight gradient
// once.
OpFacts embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width),
                     table = times(times(op.shape.vocab * op.shape.vocab_parts, op.shape.width), w.element_bytes);
  return {.saved_inputs = 0b1,
          .backward_scratch_bytes = times(w.tokens(), 8),
          .forward_traffic_bytes = 2 * rows + 8 * w.tokens(),
          .backward_traffic_bytes = 3 * rows + table + 8 * w.tokens()};
}

// Row t uses position t % seq_len: nothing to remember.
OpFacts position_embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width),
                     table = times(times(op.shape.positions, op.shape.width), w.element_bytes);
  return {.forward_traffic_bytes = 2 * rows + table, .backward_traffic_bytes = 2 * rows + table};
}

// 1/rms of every normalised row, in the accumulate type.
OpFacts rms_norm(const Op& op, const Workload& w) {
  const std::int64_t groups = times(w.tokens(), op.shape.groups),
                     x = times(times(groups, op.shape.width), w.element_bytes);
  const std::int64_t statistics = times(groups, accumulate_bytes(w));
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = statistics,
          .forward_traffic_bytes = 2 * x + statistics,
          .backward_traffic_bytes = 3 * x + statistics};
}

// Mean and 1/std of every row.
OpFacts layer_norm(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width), statistics = times(2 * w.tokens(), accumulate_bytes(w));
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = statistics,
          .forward_traffic_bytes = 2 * x + statistics,
          .backward_traffic_bytes = 3 * x + statistics};
}

// `count` matmuls [rows,in]x[in,out]; backward has those of the input [rows,out]x[out,in] and of the weight
// [out,rows]x[rows,in]: the same three extents, hence the same tiles. 2-byte storage is multiplied as float, in tiles
// of at most 512 x 512 of both operands and the result (executor/kernels/matmul/).
OpFacts matmuls(std::int64_t count, std::int64_t rows, const OpShape& s, const Workload& w) {
  const std::int64_t elements =
      checked_add(checked_add(times(rows, s.in), times(s.in, s.out), kOpSize), times(rows, s.out), kOpSize);
  const std::int64_t bytes = times(times(elements, count), w.element_bytes), a = std::min<std::int64_t>(rows, 512);
  const std::int64_t b = std::min<std::int64_t>(s.in, 512), c = std::min<std::int64_t>(s.out, 512);
  const std::int64_t copies = w.element_bytes == 2 ? 4 * (a * b + b * c + a * c) : 0;
  return {.saved_inputs = 0b1,
          .forward_scratch_bytes = copies,
          .backward_scratch_bytes = copies,
          .backward_launches = 2,
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = 2 * bytes};
}

OpFacts linear(const Op& op, const Workload& w) { return matmuls(1, w.tokens(), op.shape, w); }

// The rotation is orthogonal and its angles are recomputed.
OpFacts rotary(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, times(op.shape.heads, op.shape.head_dim));
  return {.forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 2 * x};
}

// q, k, v (or the packed tensor) and the output stay, and the log-sum-exp of each row of scores. Scratch holds one head
// in the accumulate type and blocks of up to 64 queries (executor/kernels/ops/attention.cpp): forward k, v; a block of
// q and o; its scores. Backward k, v, dk, dv; a block of q, o, do, dq; its probabilities and their gradient; rowsum(do
// o).
OpFacts attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t a = accumulate_bytes(w), rows = times(times(w.tokens(), s.heads), a),
                     block = std::min<std::int64_t>(64, w.seq_len);
  const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)), kv = row_bytes(w, times(2 * s.kv_heads, s.head_dim));
  const std::int64_t forward =
      checked_add(times(2 * (w.seq_len + block), s.head_dim), times(block, w.seq_len), kOpSize);
  return {.saved_inputs = static_cast<std::uint8_t>(s.packed ? 0b1 : 0b111),
          .saved_outputs = 0b1,
          .saved_extra_bytes = rows,
          .forward_scratch_bytes = times(forward, a),
          .backward_scratch_bytes = times(checked_add(2 * forward, block, kOpSize), a),
          .forward_traffic_bytes = 2 * q + kv + rows,
          .backward_traffic_bytes = 4 * q + 2 * kv + 2 * rows,
          .result_extra_bytes = rows};
}

OpFacts swiglu(const Op& op, const Workload& w) {
  const std::int64_t x = times(times(rows(op.shape.experts, w), op.shape.width), w.element_bytes);
  return {.saved_inputs = static_cast<std::uint8_t>(op.shape.packed ? 0b1 : 0b11),
          .forward_traffic_bytes = 3 * x,
          .backward_traffic_bytes = 5 * x};
}

OpFacts gelu(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1, .forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 3 * x};
}

// Backward copies the gradient to both inputs.
OpFacts add(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.forward_traffic_bytes = 3 * x, .backward_traffic_bytes = 3 * x};
}

OpFacts scale(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 2 * x};
}

// Log-sum-exp of each token's logits; backward turns it and the logits into softmax minus one-hot.
OpFacts cross_entropy(const Op& op, const Workload& w) {
  const std::int64_t logits = row_bytes(w, op.shape.vocab), rows = times(w.tokens(), accumulate_bytes(w));
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = rows,
          .forward_traffic_bytes = logits + rows + 8 * w.tokens(),
          .backward_traffic_bytes = 2 * logits + rows + 8 * w.tokens()};
}

OpFacts opaque(const Op& op, const Workload& w) {
  const std::int64_t bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  return {.saved_extra_bytes = times(w.tokens(), op.shape.opaque_saved_bytes_per_token),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = 2 * bytes};
}

// Mixtures of experts (executor/kernels/ops/moe.cpp). k: choices of all tokens. Routing counts the taken slots of each
// expert; what was chosen is in the slots, and renormalised weights are all that their gradient needs; otherwise the
// probabilities are made again from the logits.
struct ExpertBytes {
  ExpertBytes(const Op& op, const Workload& w)
      : choices(times(w.tokens(), op.shape.experts.top_k)),
        logits(row_bytes(w, op.shape.experts.count)),
        weights(times(choices, w.element_bytes)),
        ids(times(choices, 8)),
        chosen_rows(times(weights, op.shape.width)),
        slot_rows(times(times(rows(op.shape.experts, w), op.shape.width), w.element_bytes)),
        tokens(row_bytes(w, op.shape.width)) {}
  const std::int64_t choices, logits, weights, ids, chosen_rows, slot_rows, tokens;
};

OpFacts moe_route(const Op& op, const Workload& w) {
  const ExpertBytes b(op, w);
  const bool renormalised = op.shape.renormalised;
  return {.saved_inputs = static_cast<std::uint8_t>(renormalised ? 0 : 0b1),
          .saved_outputs = static_cast<std::uint8_t>(renormalised ? 0b11 : 0b10),
          .forward_scratch_bytes = times(op.shape.experts.count, 8),
          .forward_traffic_bytes = b.logits + b.weights + b.ids,
          .backward_traffic_bytes = (renormalised ? 1 : 2) * b.logits + 2 * b.weights + b.ids};
}

OpFacts moe_dispatch(const Op& op, const Workload& w) {
  const ExpertBytes b(op, w);
  return {.saved_inputs = 0b10,
          .forward_traffic_bytes = b.chosen_rows + b.slot_rows + b.ids,
          .backward_traffic_bytes = b.chosen_rows + b.tokens + b.ids};
}

// One matmul per expert, each over the whole capacity.
OpFacts expert_linear(const Op& op, const Workload& w) {
  return matmuls(op.shape.experts.count, op.shape.experts.capacity(w.tokens()), op.shape, w);
}

OpFacts moe_combine(const Op& op, const Workload& w) {
  const ExpertBytes b(op, w);
  return {.saved_inputs = 0b111,
          .forward_traffic_bytes = b.chosen_rows + b.tokens + b.weights + b.ids,
          .backward_traffic_bytes = b.tokens + b.chosen_rows + b.slot_rows + 2 * b.weights + b.ids};
}

// Its collective and its copies are operations of their own.
OpFacts redistribute(const Op&, const Workload&) { return {}; }

// Kernels divide scores by the root of a head's size.
std::string_view lacks(const Op& op) {
  if (op.kind == OpKind::attention && op.shape.score_factor != 0) return "attention with a factor of its own";
  return few_families(op);
}

}  // namespace

const Implementation& native_implementation() {
  static const Implementation native{
      .name = "native",
      .compiled = false,
      .rules = {embedding,     position_embedding,
                rms_norm,      layer_norm,
                linear,        rotary,
                attention,     swiglu,
                gelu,          add,
                cross_entropy, opaque,
                moe_route,     moe_dispatch,
                expert_linear, moe_combine,
                nullptr,       scale,
                nullptr,       redistribute},
      .lacks = lacks,
      .backward_adds_in_place = true,
      .loss_read_every_step = true,  // the loop reports the loss of each step
      .keeps_selectively = pytorch::keeps_every_second_matmul,
      .sdpa = AttentionKernel::flash2,  // of our kernels, where none was calibrated
      .optimizer_form = OptimizerForm::fused,
      .optimizer_temp_bytes_per_element = 0,  // one fused pass
      .memory = MemorySource::arena,
      .host_seconds_per_launch = 0,  // `calibrate` measures it: Costs::host_per_operation
      .host_seconds_per_unit_hook = 0,
  };
  return native;
}

}  // namespace fsdp
