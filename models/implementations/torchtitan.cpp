// torchtitan's Llama on PyTorch 2.x, eager or under torch.compile (per block, and the loss), with the bf16 parameters and
// activations that FSDP2's mixed precision gives. What autograd saves is read off PyTorch's derivative formulas
// (tools/autograd/derivatives.yaml) and off the model's code; sizes of library temporaries are those of the kernels that
// PyTorch ships. "rows": T * width * element_bytes.
//
// Not modelled: the gradient of a residual addition is one tensor for both inputs in PyTorch (an alias, no kernel); the
// tape decides what to do with that. Small reductions of norm weight gradients have no scratch here.
#include <algorithm>

#include "models/implementation.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::int64_t times(std::int64_t a, std::int64_t b) { return checked_mul(a, b, "op size"); }
std::int64_t plus(std::int64_t a, std::int64_t b) { return checked_add(a, b, "op size"); }
std::int64_t row_elements(const Workload& w, std::int64_t width) { return times(w.tokens(), width); }
std::int64_t row_bytes(const Workload& w, std::int64_t width) { return times(row_elements(w, width), w.element_bytes); }

// aten::embedding saves the indices. Backward (embedding_dense_backward_cuda) sorts them (two int64 arrays in, two out), sums
// runs of at most 10 equal indices into fp32 partial rows, at most one per token, then writes the dense gradient: about six
// launches (sort, runs, scan, two sums, fill). Partial rows are an upper bound: frequent tokens share one.
OpFacts embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width), table = times(times(op.shape.vocab, op.shape.width), w.element_bytes);
  const std::int64_t partial = times(row_elements(w, op.shape.width), 4);
  return {.saved_inputs = 0b1,
          .backward_scratch_bytes = plus(partial, times(w.tokens(), 32)),
          .backward_launches = 6,
          .forward_traffic_bytes = 2 * rows + 8 * w.tokens(),
          .backward_traffic_bytes = plus(plus(rows, table), 2 * partial)};
}

// GPT-style learned positions: a lookup of [seq_len, width], then a broadcast addition; neither saves an activation. Backward
// sums over sequences and scatters.
OpFacts position_embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width),
                     table = times(times(op.shape.positions, op.shape.width), w.element_bytes);
  const std::int64_t looked_up = times(times(w.seq_len, op.shape.width), w.element_bytes);
  return {.forward_scratch_bytes = looked_up,
          .backward_scratch_bytes = looked_up,
          .forward_launches = 2,
          .backward_launches = 2,
          .forward_traffic_bytes = plus(2 * rows, 3 * looked_up),
          .backward_traffic_bytes = plus(rows, plus(2 * looked_up, table))};
}

// aten::_fused_rms_norm saves input and rstd (fp32, one per row); backward is one kernel for the input and one for the weight.
OpFacts rms_norm(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, times(op.shape.groups, op.shape.width)),
                     rstd = times(times(w.tokens(), op.shape.groups), 4);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = rstd,
          .backward_launches = 2,
          .forward_traffic_bytes = 2 * rows + rstd,
          .backward_traffic_bytes = 5 * rows + 2 * rstd};
}
// Inductor: the same values; the weight's gradient shares the reads of the input's, and leaves a partial-sum kernel.
OpFacts rms_norm_compiled(const Op& op, const Workload& w) {
  OpFacts f = rms_norm(op, w);
  f.backward_traffic_bytes = 3 * row_bytes(w, times(op.shape.groups, op.shape.width)) + f.saved_extra_bytes;
  return f;
}

// aten::native_layer_norm saves input, mean and rstd (fp32).
OpFacts layer_norm(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width), statistics = times(2 * w.tokens(), 4);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = statistics,
          .backward_launches = 2,
          .forward_traffic_bytes = 2 * rows + statistics,
          .backward_traffic_bytes = 5 * rows + 2 * statistics};
}
OpFacts layer_norm_compiled(const Op& op, const Workload& w) {
  OpFacts f = layer_norm(op, w);
  f.backward_traffic_bytes = 3 * row_bytes(w, op.shape.width) + f.saved_extra_bytes;
  return f;
}

// aten::mm saves its input (the weight belongs to FSDP); backward is two products, and a column sum for a bias. The cuBLAS
// workspace is allocated once per handle and stream, not per call.
OpFacts linear(const Op& op, const Workload& w) {
  const std::int64_t t = w.tokens(), in = op.shape.in, out = op.shape.out;
  const std::int64_t bytes = times(plus(plus(times(t, in), times(in, out)), times(t, out)), w.element_bytes);
  const bool bias = op.params.size() > 1;
  return {.saved_inputs = 0b1,
          .backward_launches = static_cast<std::int16_t>(bias ? 3 : 2),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = plus(2 * bytes, bias ? row_bytes(w, out) : 0)};
}

// apply_rotary_emb: x.float() viewed as complex, times freqs_cis (a buffer without gradient, so nothing of x is saved), then
// type_as(x). The fp32 copy and the fp32 product are alive together: 8 bytes per element; backward mirrors it (cast, multiply
// by the conjugate, cast).
// fp32 activations need no casts: the product is the output.
OpFacts rotary(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, times(op.shape.heads, op.shape.head_dim));
  if (w.element_bytes != 2)
    return {.forward_traffic_bytes = times(n, 2 * w.element_bytes), .backward_traffic_bytes = times(n, 2 * w.element_bytes)};
  const std::int64_t traffic = times(n, (w.element_bytes + 4) + (4 + 4) + (4 + w.element_bytes));
  return {.forward_scratch_bytes = times(n, 8),
          .backward_scratch_bytes = times(n, 8),
          .forward_launches = 3,
          .backward_launches = 3,
          .forward_traffic_bytes = traffic,
          .backward_traffic_bytes = traffic};
}
// Inductor has no code for complex products, so the product stays a kernel of its own between two fp32 tensors; only the
// casts around it fuse with what views do. Memory as in eager, one launch less.
OpFacts rotary_compiled(const Op& op, const Workload& w) {
  OpFacts f = rotary(op, w);
  f.forward_launches = f.backward_launches = w.element_bytes == 2 ? 2 : 1;
  return f;
}

// repeat_kv copies k and v to all heads before scaled_dot_product_attention; flash saves q, those copies, out and the
// log-sum-exp (fp32 per row and head); the short k and v are not kept. Without grouping k and v themselves are saved.
// Backward (FlashAttention-2): delta (fp32 per row and head), an fp32 accumulator of dq, dk and dv for all heads, which two
// sums reduce to the kv heads. Three kernels, plus the sums. A packed qkv is split by views.
OpFacts attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)), kv = row_bytes(w, times(s.kv_heads, s.head_dim));
  const std::int64_t statistics = times(times(w.tokens(), s.heads), 4),
                     q_fp32 = times(row_elements(w, times(s.heads, s.head_dim)), 4);
  const bool grouped = s.kv_heads != s.heads && !s.packed;
  OpFacts f{.saved_inputs = static_cast<std::uint8_t>(s.packed  ? 0b1
                                                      : grouped ? 0b001
                                                                : 0b111),
            .saved_outputs = 0b1,
            .saved_extra_bytes = statistics,
            .backward_scratch_bytes = plus(statistics, q_fp32),
            .backward_launches = 3,
            .forward_traffic_bytes = plus(4 * q, statistics),
            .backward_traffic_bytes = plus(8 * q, plus(2 * statistics, 2 * q_fp32))};
  if (grouped) {
    f.saved_extra_bytes = plus(f.saved_extra_bytes, 2 * q);
    f.backward_scratch_bytes = plus(f.backward_scratch_bytes, 2 * q);
    f.forward_launches = 3;
    f.backward_launches = 5;
    f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * (kv + q));
    f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 2 * (kv + q));
  }
  return f;
}

// F.silu(gate) saves gate, the product saves both factors: gate and up are inputs, silu(gate) is extra. Backward: two products
// and silu_backward, with the gradient of silu(gate) between them.
OpFacts swiglu(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = x,
          .backward_scratch_bytes = x,
          .forward_launches = 2,
          .backward_launches = 3,
          .forward_traffic_bytes = 5 * x,
          .backward_traffic_bytes = 9 * x};
}
// Fused: silu is recomputed in backward (pointwise and read by pointwise only).
OpFacts swiglu_compiled(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b11, .forward_traffic_bytes = 3 * x, .backward_traffic_bytes = 5 * x};
}

// aten::gelu saves its input; one kernel each way, compiled too (its neighbours are matrix products, which stay in cuBLAS).
OpFacts gelu(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1, .forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 3 * x};
}

// aten::add saves nothing; its backward hands the gradient on without a kernel.
OpFacts add(const Op& op, const Workload& w) {
  return {.backward_launches = 0, .forward_traffic_bytes = 3 * row_bytes(w, op.shape.width)};
}
// Fused into the norm that follows: no launch, and the norm's read of the sum is the read of one summand.
OpFacts add_compiled(const Op& op, const Workload& w) {
  return {.forward_launches = 0, .backward_launches = 0, .forward_traffic_bytes = 2 * row_bytes(w, op.shape.width)};
}

// F.cross_entropy(pred.float(), labels): log_softmax saves its fp32 output, nll_loss that and the labels; the fp32 copy of the
// logits dies when the call returns, the bf16 logits when the training loop drops them before backward. Backward holds the
// gradients of nll_loss and of log_softmax (fp32) together before the cast to the type of the logits.
// Launches: cast, log_softmax, nll; fill, nll backward, log_softmax backward, cast.
// Other types than 2-byte ones are not cast, and the gradient of log_softmax is the gradient of the logits.
OpFacts cross_entropy(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, op.shape.vocab), e = w.element_bytes;
  if (e != 2) {
    return {.saved_inputs = 0b10,
            .saved_extra_bytes = times(n, e),
            .backward_scratch_bytes = times(n, e),
            .forward_launches = 2,
            .backward_launches = 3,
            .forward_traffic_bytes = times(n, 2 * e),
            .backward_traffic_bytes = times(n, 4 * e)};
  }
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = times(n, 4),
          .forward_scratch_bytes = times(n, 4),
          .backward_scratch_bytes = times(n, 8),
          .forward_launches = 3,
          .backward_launches = 4,
          .forward_traffic_bytes = times(n, (e + 4) + 8),
          .backward_traffic_bytes = times(n, 4 + 12 + (4 + e))};
}
// Compiled loss: the fp32 values live in registers; the logits, their maximum and the log-sum stay (fp32 per token).
OpFacts cross_entropy_compiled(const Op& op, const Workload& w) {
  const std::int64_t logits = row_bytes(w, op.shape.vocab), rows = times(w.tokens(), 8);
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = rows,
          .forward_launches = 2,
          .forward_traffic_bytes = plus(2 * logits, rows),
          .backward_traffic_bytes = plus(2 * logits, rows)};
}

OpFacts opaque(const Op& op, const Workload& w) {
  const std::int64_t bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  return {.saved_extra_bytes = times(w.tokens(), op.shape.opaque_saved_bytes_per_token),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = 2 * bytes};
}

}  // namespace

const Implementation& torchtitan_implementation(bool compiled) {
  // Host time. An eager PyTorch op costs the CPU 10-20 us (llm.c and PyTorch issue reports agree): 12 us, as backward runs from
  // C++. Compiled code launches from generated wrappers: cudaLaunchKernel's 4-6 us. A hook: PyTorch issue 173680 measures about 1
  // ms for FSDP2's pre-forward of one module; the other hooks do less, so half of it is charged to each. Hooks stay eager when
  // blocks are compiled. AdamW is `fused=True` (torchtitan's default): no temporaries beside the states.
  static const Implementation eager{
      .name = "torchtitan",
      .compiled = false,
      .rules = {embedding, position_embedding, rms_norm, layer_norm, linear, rotary, attention, swiglu, gelu, add, cross_entropy,
                opaque},
      .backward_adds_in_place = false,
      .loss_read_every_step = false,  // metrics are read every 10 steps
      .optimizer_temp_bytes_per_element = 0,
      .host_seconds_per_launch = 12e-6,
      .host_seconds_per_unit_hook = 5e-4,
  };
  static const Implementation inductor{
      .name = "torchtitan",
      .compiled = true,
      .rules = {embedding, position_embedding, rms_norm_compiled, layer_norm_compiled, linear, rotary_compiled, attention,
                swiglu_compiled, gelu, add_compiled, cross_entropy_compiled, opaque},
      .backward_adds_in_place = false,
      .loss_read_every_step = false,
      .optimizer_temp_bytes_per_element = 0,
      .host_seconds_per_launch = 6e-6,
      .host_seconds_per_unit_hook = 5e-4,
  };
  return compiled ? inductor : eager;
}

}  // namespace fsdp
