// PyTorch 2.15, eager, on CPU tensors: what torchtitan's Llama keeps and allocates when it runs there. It exists to be
// compared with recordings of PyTorch on CPU or fake tensors (tests/torch/record_memory.py), which see tensors and not
// what a kernel takes inside, and know no 512-byte rounding. It says nothing about time and is never a default; memory
// of GPU runs is `torchtitan`'s business.
//
// It differs from `torchtitan` where PyTorch's CPU build does: rms_norm is made of elementwise ops, and no kernel's own
// workspace is seen. Temporaries are those that are alive when most bytes are, beside the op's inputs, outputs and what
// is saved, which the tape holds for the whole op. n: elements of the op's output.
#include "models/implementation.h"
#include "models/implementations/float8.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::int64_t times(std::int64_t a, std::int64_t b) { return checked_mul(a, b, kOpSize); }
std::int64_t plus(std::int64_t a, std::int64_t b) { return checked_add(a, b, kOpSize); }
std::int64_t row_elements(const Workload& w, std::int64_t width) { return times(w.tokens(), width); }
std::int64_t row_bytes(const Workload& w, std::int64_t width) { return times(row_elements(w, width), w.element_bytes); }

OpFacts embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1,
          .forward_traffic_bytes = 2 * rows,
          .backward_traffic_bytes = plus(rows, times(times(op.shape.vocab, op.shape.width), w.element_bytes))};
}

// A lookup of [seq_len, width], then a broadcast addition.
OpFacts position_embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width),
                     looked_up = times(times(w.seq_len, op.shape.width), w.element_bytes);
  return {.forward_scratch_bytes = looked_up,
          .backward_scratch_bytes = looked_up,
          .forward_traffic_bytes = plus(2 * rows, looked_up),
          .backward_traffic_bytes = plus(rows, looked_up)};
}

// x -> fp32, r = rsqrt(mean(x^2) + eps), y = x r, out = y weight -> type of x. Saved: x in fp32 (the square and the
// first product), r (one fp32 per row), y in fp32 (the second product). Without casts x itself is the input.
// Temporaries. Forward, 2-byte types: the fp32 product beside its cast. Backward, 2-byte types: at the end of the path
// through r, the gradient through x r, that of the mean spread over the row, and x, 2 x and their product with it; y
// and r are gone by then. Other types: the first products, with y and with the weight; later the gradient through x r
// is one with that of the residual branch.
OpFacts rms_norm(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, times(op.shape.groups, op.shape.width)),
                     r = times(times(w.tokens(), op.shape.groups), 4);
  const bool casts = w.element_bytes == 2;
  return {.saved_inputs = static_cast<std::uint8_t>(casts ? 0 : 1),
          .saved_extra_bytes = plus(r, times(n, casts ? 8 : w.element_bytes)),
          .forward_scratch_bytes = casts ? times(n, 4) : 0,
          .backward_scratch_bytes = casts ? times(n, 12) - r : times(n, w.element_bytes),
          .forward_launches = static_cast<std::int16_t>(casts ? 8 : 6),
          .backward_launches = 14,
          .forward_traffic_bytes = times(n, 6 * w.element_bytes),
          .backward_traffic_bytes = times(n, 14 * w.element_bytes)};
}

// Mean and 1/std per row, in the type of the weights on the CPU.
OpFacts layer_norm(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width), statistics = times(2 * w.tokens(), w.element_bytes);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = statistics,
          .forward_traffic_bytes = 2 * rows + statistics,
          .backward_traffic_bytes = 3 * rows + statistics};
}

OpFacts linear(const Op& op, const Workload& w) {
  if (op.shape.float8 != Float8Recipe::none) return float8::linear(op, w);
  const std::int64_t t = w.tokens(), in = op.shape.in, out = op.shape.out;
  const std::int64_t bytes = times(plus(plus(times(t, in), times(in, out)), times(t, out)), w.element_bytes);
  return {
      .saved_inputs = 0b1, .backward_launches = 2, .forward_traffic_bytes = bytes, .backward_traffic_bytes = 2 * bytes};
}

// Complex product with a table: x in fp32, the product, its cast. Backward: the product beside the gradient in fp32,
// when the gradient itself is gone and the result not there yet.
OpFacts rotary(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, times(op.shape.heads, op.shape.head_dim));
  const bool casts = w.element_bytes == 2;
  return {.forward_scratch_bytes = casts ? times(n, 8) : 0,
          .backward_scratch_bytes = casts ? times(n, 4) : 0,
          .forward_launches = static_cast<std::int16_t>(casts ? 3 : 1),
          .backward_launches = static_cast<std::int16_t>(casts ? 3 : 1),
          .forward_traffic_bytes = times(n, 2 * w.element_bytes),
          .backward_traffic_bytes = times(n, 2 * w.element_bytes)};
}

// The flash kernel saves q, k, v (grouped: copies of k and v for all heads; a single head is repeated by strides,
// without a copy), out and the log-sum-exp. Backward, grouped: gradients of k and v for all heads, before they are
// summed.
OpFacts attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)), kv = row_bytes(w, times(s.kv_heads, s.head_dim));
  const bool grouped = s.kv_heads != s.heads && !s.packed, copies = grouped && s.kv_heads > 1;
  return {.saved_inputs = static_cast<std::uint8_t>(s.packed || copies ? 0b1 : 0b111),
          .saved_outputs = 0b1,
          .saved_extra_bytes = plus(times(times(w.tokens(), s.heads), 4), copies ? 2 * q : 0),
          .backward_scratch_bytes = grouped ? 2 * (q - kv) : 0,
          .forward_launches = static_cast<std::int16_t>(copies ? 3 : 1),
          .backward_launches = static_cast<std::int16_t>(grouped ? 3 : 1),
          .forward_traffic_bytes = 4 * q,
          .backward_traffic_bytes = 8 * q};
}

// Saved: gate, silu(gate), up. Backward: the gradients of up and of silu(gate) are made while everything saved is
// there; the gradient of gate comes when the others are gone.
OpFacts swiglu(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = x,
          .forward_launches = 2,
          .backward_launches = 3,
          .forward_traffic_bytes = 5 * x,
          .backward_traffic_bytes = 9 * x};
}

OpFacts gelu(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1, .forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 3 * x};
}

OpFacts add(const Op& op, const Workload& w) {
  return {.backward_launches = 0, .forward_traffic_bytes = 3 * row_bytes(w, op.shape.width)};
}

// log_softmax of the logits in fp32: its result is saved. Backward: the gradient of the loss and that of log_softmax
// beside the saved result; in 2-byte types the gradient of the logits is a cast of the latter, made when the other two
// are gone.
OpFacts cross_entropy(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, op.shape.vocab), e = w.element_bytes;
  const bool casts = e == 2, split = op.shape.vocab_parts > 1;
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = times(n, casts ? 4 : e),
          // Of logits split over ranks one tensor more each way (pytorch_ops.cpp, split_cross_entropy).
          .forward_scratch_bytes = plus(casts ? times(n, 4) : 0, split ? times(n, casts ? 4 : e) : 0),
          .backward_scratch_bytes = plus(times(n, casts ? 6 : e), split ? times(n, casts ? 4 : e) : 0),
          .forward_launches = static_cast<std::int16_t>(casts ? 3 : 2),
          .backward_launches = static_cast<std::int16_t>(casts ? 4 : 3),
          .forward_traffic_bytes = times(n, casts ? 14 : 2 * e),
          .backward_traffic_bytes = times(n, casts ? 22 : 4 * e)};
}

OpFacts opaque(const Op& op, const Workload& w) {
  const std::int64_t bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  return {.saved_extra_bytes = times(w.tokens(), op.shape.opaque_saved_bytes_per_token),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = 2 * bytes};
}

OpFacts redistribute(const Op&, const Workload&) { return {}; }

Implementation of_cpu_tensors() {
  Implementation i{
      .name = "torch-cpu",
      .compiled = false,
      .rules = {embedding, position_embedding, rms_norm, layer_norm, linear, rotary, attention, swiglu, gelu, add,
                cross_entropy, opaque},
      .lacks = float8::lacks,
      .backward_adds_in_place = false,
      .loss_read_every_step = false,
      .frames_hold_inputs = true,
      .optimizer_form = OptimizerForm::loop,
      .optimizer_temp_bytes_per_element = 0,  // AdamW fused
      .host_seconds_per_launch = 12e-6,       // as `torchtitan`, eager
      .host_seconds_per_unit_hook = 5e-4,
  };
  i.rules[static_cast<std::size_t>(OpKind::redistribute)] = redistribute;
  return i;
}

}  // namespace

const Implementation& torch_cpu_implementation() {
  static const Implementation cpu = of_cpu_tensors();
  return cpu;
}

}  // namespace fsdp
