// PyTorch's own operators, as every eager stack calls them and as Inductor compiles them: rules that the
// implementations beside this file share. What autograd saves is read off PyTorch's derivative formulas
// (tools/autograd/derivatives.yaml), sizes of library temporaries are those of the kernels that PyTorch ships;
// tests/torch/record_saved.py and record_tape.py record both. "rows": T * width * element_bytes.
//
// Not modelled: the gradient of a residual addition is one tensor for both inputs in PyTorch (an alias, no kernel); the
// tape decides what to do with that. Small reductions of norm weight gradients have no scratch here.
#include "models/implementations/pytorch_ops.h"

#include <algorithm>

#include "models/implementations/float8.h"
#include "models/input/error.h"

namespace fsdp::pytorch {

namespace {

// Fractions of the memory rate of good kernels. Norms: cudnn-frontend's benchmark files, RMSNorm and LayerNorm on H200,
// bf16, whose memory rate is 4.1 TB/s: PyTorch's forward 2.4 to 3.4 TB/s, backward 1.5 to 1.8 of three tensors' bytes,
// which are five tensors' here (two kernels read both inputs); compiled forward 3.4 to 4.2, backward 1.6 to 1.8 of
// three.
constexpr double kNormForward = 0.75, kNormBackward = 0.65, kCompiledNormBackward = 0.43;

// Rows that aten's softmax keeps in shared memory between its passes.
constexpr std::int64_t kSoftmaxRowBytes = 48 * 1024;

}  // namespace

// aten::embedding saves the indices. Backward (embedding_dense_backward_cuda) sorts them (two int64 arrays in, two
// out), sums runs of at most 10 equal indices into fp32 partial rows, at most one per token, then writes the dense
// gradient: about six launches (sort, runs, scan, two sums, fill). Partial rows are an upper bound: frequent tokens
// share one.
OpFacts embedding(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width),
                     table = times(times(op.shape.vocab, op.shape.width), w.element_bytes);
  const std::int64_t partial = times(row_elements(w, op.shape.width), 4);
  return {.saved_inputs = 0b1,
          .backward_scratch_bytes = plus(partial, times(w.tokens(), 32)),
          .backward_launches = 6,
          .forward_traffic_bytes = 2 * rows + 8 * w.tokens(),
          .backward_traffic_bytes = plus(plus(rows, table), 2 * partial)};
}

// GPT-style learned positions: a lookup of [seq_len, width], then a broadcast addition; neither saves an activation.
// Backward sums over sequences and scatters.
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

// aten::_fused_rms_norm saves input and rstd (fp32, one per row); backward is one kernel for the input and one for the
// weight.
OpFacts fused_rms_norm(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, times(op.shape.groups, op.shape.width)),
                     rstd = times(times(w.tokens(), op.shape.groups), 4);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = rstd,
          .backward_launches = 2,
          .forward_traffic_bytes = 2 * rows + rstd,
          .backward_traffic_bytes = 5 * rows + 2 * rstd,
          .forward_rate = kNormForward,
          .backward_rate = kNormBackward};
}
// Inductor: the same values; the weight's gradient shares the reads of the input's, and leaves a partial-sum kernel.
OpFacts fused_rms_norm_compiled(const Op& op, const Workload& w) {
  OpFacts f = fused_rms_norm(op, w);
  f.forward_rate = 1;
  f.backward_rate = kCompiledNormBackward;
  f.backward_traffic_bytes = 3 * row_bytes(w, times(op.shape.groups, op.shape.width)) + f.saved_extra_bytes;
  return f;
}

// RMSNorm written out, x32 being x in fp32. Saved: x32 (the square and the first product), 1/rms (fp32 per row), the
// result before the weight. x itself is not. At the worst moment of backward, at the end of the square's derivative,
// six fp32 tensors are alive: the gradient through the product, the mean's, x32, x32^1, 2 x32, and their product; x32^1
// and 2 x32 are operators of their own.
OpFacts upcast_rms_norm(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, times(op.shape.groups, op.shape.width)),
                     r = times(times(w.tokens(), op.shape.groups), 4);
  const bool cast = w.element_bytes == 2;
  return {.saved_inputs = static_cast<std::uint8_t>(cast ? 0 : 1),
          .saved_extra_bytes = plus(r, times(n, cast ? 6 : w.element_bytes)),
          .saved_for_weight_bytes = times(n, w.element_bytes),
          .forward_scratch_bytes = cast ? times(n, 2) : 0,
          .backward_scratch_bytes = times(n, cast ? 14 : 2 * w.element_bytes) - r,
          .forward_launches = static_cast<std::int16_t>(cast ? 8 : 6),
          .backward_launches = static_cast<std::int16_t>(cast ? 16 : 14),
          .forward_traffic_bytes = times(n, cast ? 36 : 7 * w.element_bytes),
          .backward_traffic_bytes = times(n, cast ? 92 : 23 * w.element_bytes)};
}
// The same with the weight's product in fp32, too, and the cast last: the result before the weight stays in fp32.
OpFacts composed_rms_norm(const Op& op, const Workload& w) {
  OpFacts f = upcast_rms_norm(op, w);
  if (w.element_bytes != 2) return f;
  const std::int64_t n = row_elements(w, times(op.shape.groups, op.shape.width)),
                     r = times(times(w.tokens(), op.shape.groups), 4);
  f.saved_extra_bytes = plus(r, times(n, 8));
  f.saved_for_weight_bytes = times(n, 4);
  f.forward_scratch_bytes = times(n, 4);
  f.backward_scratch_bytes = times(n, 12) - r;
  f.backward_launches = 17;
  f.forward_traffic_bytes = times(n, 42);
  f.backward_traffic_bytes = times(n, 100);
  return f;
}

// aten::native_layer_norm saves input, mean and rstd (fp32).
OpFacts layer_norm(const Op& op, const Workload& w) {
  const std::int64_t rows = row_bytes(w, op.shape.width), statistics = times(2 * w.tokens(), 4);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = statistics,
          .backward_launches = 2,
          .forward_traffic_bytes = 2 * rows + statistics,
          .backward_traffic_bytes = 5 * rows + 2 * statistics,
          .forward_rate = kNormForward,
          .backward_rate = kNormBackward};
}
OpFacts layer_norm_compiled(const Op& op, const Workload& w) {
  OpFacts f = layer_norm(op, w);
  f.forward_rate = 1;
  f.backward_rate = kCompiledNormBackward;
  f.backward_traffic_bytes = 3 * row_bytes(w, op.shape.width) + f.saved_extra_bytes;
  return f;
}

// aten::mm saves its input (the weight belongs to FSDP); backward is two matmuls, and a column sum for a bias. The
// cuBLAS workspace is allocated once per handle and stream, not per call.
OpFacts linear(const Op& op, const Workload& w) {
  if (op.shape.float8 != Float8Recipe::none) return float8::linear(op, w);
  const std::int64_t t = w.tokens(), in = op.shape.in, out = op.shape.out;
  const std::int64_t bytes = times(plus(plus(times(t, in), times(in, out)), times(t, out)), w.element_bytes);
  const bool bias = op.params.size() > 1;
  return {.saved_inputs = 0b1,
          .backward_launches = static_cast<std::int16_t>(bias ? 3 : 2),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = plus(2 * bytes, bias ? row_bytes(w, out) : 0)};
}

// A matrix product is the library's, compiled or not; the casts around one in 8 bits are not.
OpFacts linear_compiled(const Op& op, const Workload& w) {
  return op.shape.float8 != Float8Recipe::none ? float8::linear_compiled(op, w) : linear(op, w);
}

// Nothing of x is saved; cos and sin are made once per forward, for all layers. Beside x and the result, x cos,
// (-x2, x1) and its product are alive at the end, the first and the last two in turn; backward mirrors it and copies to
// x's layout.
OpFacts composed_rotary(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, times(op.shape.heads, op.shape.head_dim));
  return {.forward_scratch_bytes = 2 * x,
          .backward_scratch_bytes = 2 * x,
          .forward_launches = 5,
          .backward_launches = 6,
          .forward_traffic_bytes = times(x, 10),
          .backward_traffic_bytes = times(x, 13)};
}

// x is read and the rotation written once, both ways; nothing else is made.
OpFacts composed_rotary_compiled(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, times(op.shape.heads, op.shape.head_dim));
  return {.forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 2 * x};
}

// F.silu(gate) saves gate, the product saves both factors: gate and up are inputs, silu(gate) is extra. Backward: two
// products and silu_backward, with the gradient of silu(gate) between them: it is there before the gradient of gate,
// and when that is made the product's factors and gradient are gone, so that the op never holds more than its
// arguments. Packed: gate and up are views, and their gradients are joined in the end, when nothing else is left.
OpFacts swiglu(const Op& op, const Workload& w) {
  const std::int64_t x = width_bytes(op, w);
  if (op.shape.packed)
    return {.saved_inputs = 0b1,
            .saved_extra_bytes = x,
            .forward_launches = 2,
            .backward_launches = 4,
            .forward_traffic_bytes = 5 * x,
            .backward_traffic_bytes = 13 * x,
            .backward_inside = {{x, x, x}, "+0 +1 -y -e +2 -1 -i0 +o -0 -2"}};
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = x,
          .forward_launches = 2,
          .backward_launches = 3,
          .forward_traffic_bytes = 5 * x,
          .backward_traffic_bytes = 9 * x,
          .saves_by_input = true,
          .extra_replaces_input = true,
          .backward_inside = {{}, "+o0 +o1 -y -e -i1"}};
}
// Fused: silu is recomputed in backward (pointwise and read by pointwise only). Inductor writes the product over a
// factor that nothing reads again, and both gradients over the factors. In a module that runs again the kernel that
// makes the gradients makes the product, too, and writes over nothing (`makes_result_again`).
OpFacts swiglu_compiled(const Op& op, const Workload& w) {
  const std::int64_t x = width_bytes(op, w);
  OpFacts f{.saved_inputs = static_cast<std::uint8_t>(op.shape.packed ? 0b1 : 0b11),
            .forward_traffic_bytes = 3 * x,
            .backward_traffic_bytes = 5 * x};
  if (op.shape.packed) return f;
  f.forward_inside = {{}, "-i1 +o"};
  f.backward_inside = {{}, "-i0 -i1 +o"};
  f.backward_again = {{x}, "+0 +o -0"};
  f.makes_result_again = true;
  return f;
}

// aten::gelu saves its input; one kernel each way, compiled too (its neighbours are matmuls, which stay in
// cuBLAS).
OpFacts gelu(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1, .forward_traffic_bytes = 2 * x, .backward_traffic_bytes = 3 * x};
}

// aten::add saves nothing; its backward hands the gradient on without a kernel.
OpFacts add(const Op& op, const Workload& w) {
  return {.backward_launches = 0, .forward_traffic_bytes = 3 * width_bytes(op, w)};
}
// Fused into the norm that follows: no launch, and the norm's read of the sum is the read of one summand, over which it
// is written.
OpFacts add_compiled(const Op& op, const Workload& w) {
  return {.forward_launches = 0,
          .backward_launches = 0,
          .forward_traffic_bytes = 2 * row_bytes(w, op.shape.width),
          .forward_inside = {{}, "-i1 +o"}};
}

// One block per row, which goes over the row three times: maximum, sum, result (SoftMax.cu). Up to 48 KB the row stays
// in shared memory; longer rows of all resident blocks are more than the second level cache holds (A100: 216 blocks,
// 201 KB a row of 50k in fp32), so that every pass reads memory. H100: 32768 rows of 50304 in bf16 take 4.65 ms, four
// times their bytes at 2.84 TB/s (torch-mojo-backend, pull request 316). Backward reads the gradient twice, for its sum
// and for the result, and the output.
std::int64_t log_softmax_bytes(const Op& op, const Workload& w, std::int64_t e) {
  const std::int64_t reads = times(op.shape.vocab, e) <= kSoftmaxRowBytes ? 1 : 3;
  return times(row_elements(w, op.shape.vocab), (reads + 1) * e);
}
std::int64_t log_softmax_backward_bytes(const Op& op, const Workload& w, std::int64_t e) {
  const std::int64_t reads = times(op.shape.vocab, e) <= kSoftmaxRowBytes ? 2 : 3;
  return times(row_elements(w, op.shape.vocab), (reads + 1) * e);
}

// The same of logits that are split over ranks, inside of loss_parallel() (torch/distributed/tensor/parallel/loss.py):
// written out in elementwise operators. Forward: beside the fp32 copy of the logits the shifted logits and their
// exponentials, then the result, which is saved, in place of the latter. Backward: beside it a gradient that is zero
// but for the targets, and the exponentials, their sum, the product; two of the last three at a time. Recorded peaks of
// PyTorch 2.15 agree.
OpFacts split_cross_entropy(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, op.shape.vocab), e = w.element_bytes;
  const bool cast = e == 2;
  const std::int64_t in_fp32 = cast ? 4 : e, x = times(n, in_fp32);
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = x,
          .forward_scratch_bytes = cast ? 2 * x : x,
          .backward_scratch_bytes = cast ? times(n, 10) : 2 * x,
          .forward_launches = static_cast<std::int16_t>(cast ? 10 : 9),
          .backward_launches = static_cast<std::int16_t>(cast ? 9 : 8),
          // cast; maximum, difference, exponential, sum, difference: nine passes over fp32 values
          .forward_traffic_bytes = plus(cast ? times(n, e + 4) : 0, times(9, x)),
          // zeros, exponential, sum, product: 1 + 2 + 3 + 2 passes; cast
          .backward_traffic_bytes = plus(times(8, x), cast ? times(n, 4 + e) : 0),
          .forward_inside = cast ? Inside{{x, x, x}, "+0 +1 +2 -2 +e -1 -0"} : Inside{},
          .backward_inside = cast ? Inside{{x, x, x, x}, "+0 +1 +2 -1 +3 -2 -0 -e +o -3"} : Inside{}};
}

// F.cross_entropy(pred.float(), labels): log_softmax saves its fp32 output, nll_loss that and the labels; the fp32 copy
// of the logits dies when the call returns, the bf16 logits when the training loop drops them before backward.
// Backward, bytes per logit: the saved output, the gradients of nll_loss and of log_softmax (4 each) are alive
// together; the cast to 2 bytes comes when two of the three are gone, so that beside the saved output and the result 6
// more are needed. In n chunks (torchtitan's chunked cross-entropy of 2025: the logits exist, chunks of the sequence
// are cast and reduced one by one): saved as before; the fp32 copy and both gradients are a chunk's. torch.chunk makes
// the last one smaller, and one of several sequences is copied where no cast does it; before it as much less is saved,
// and in backward it goes first. The chunks' gradients are joined at the end, when nothing else is left. Launches, per
// chunk: cast, log_softmax, nll; fill, nll backward, log_softmax backward, cast; and the join. Other types than 2-byte
// ones are not cast, and the gradient of log_softmax is the gradient of the logits.
OpFacts cross_entropy(const Op& op, const Workload& w) {
  if (op.shape.vocab_parts > 1) return split_cross_entropy(op, w);
  const std::int64_t n = row_elements(w, op.shape.vocab), e = w.element_bytes;
  const std::int64_t tokens = (w.seq_len + w.loss_chunks - 1) / w.loss_chunks,  // of a chunk
      chunks = (w.seq_len + tokens - 1) / tokens;
  const std::int64_t per_token = n / w.seq_len, chunk = tokens * per_token, last = n - (chunks - 1) * chunk;
  const bool cast = e == 2, join = chunks > 1;
  const auto launches = [&](int each) {
    return static_cast<std::int16_t>(std::min<std::int64_t>(each * chunks, 10000));
  };
  const std::int64_t in_fp32 = cast ? 4 : e, kept = times(n, in_fp32);
  const std::int64_t forward = join ? std::max(last, chunk - last) : n;
  const std::int64_t backward =
      cast ? std::max(times(last, 8), times(chunk, 8) - times(last, join ? 2 : 0)) : times(chunk, 2 * e);
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = kept,
          .forward_scratch_bytes = cast                      ? times(forward, 4)
                                   : join && w.sequences > 1 ? times(forward, e)
                                                             : 0,
          .backward_scratch_bytes = std::max<std::int64_t>(0, backward - times(n, e)),
          .forward_launches = launches(cast ? 3 : 2),
          .backward_launches = static_cast<std::int16_t>(launches(cast ? 4 : 3) + (join ? 1 : 0)),
          .forward_traffic_bytes = plus(cast ? times(n, e + 4) : 0, log_softmax_bytes(op, w, in_fp32)),
          .backward_traffic_bytes = plus(plus(times(n, in_fp32), log_softmax_backward_bytes(op, w, in_fp32)),
                                         plus(cast ? times(n, 4 + e) : 0, join ? times(n, 2 * e) : 0)),
          .forward_inside = cast && !join ? Inside{{times(n, 4)}, "+0 +e -0"} : Inside{},
          .backward_inside = cast && !join ? Inside{{times(n, 4), times(n, 4)}, "+0 +1 -0 -e +o -1"} : Inside{}};
}
// Compiled, of logits that are split over ranks. The all-reduces of the maximum and of the sum end kernels, and what is
// between them is written out in fp32: the shifted logits, then the result, which is saved in place of the logits, with
// a byte per token (Inductor of PyTorch 2.15, its code and what autograd saved).
OpFacts split_cross_entropy_compiled(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, op.shape.vocab), e = w.element_bytes, x = times(n, e == 2 ? 4 : e);
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = plus(x, w.tokens()),
          .forward_scratch_bytes = x,
          .forward_launches = 4,
          // maximum; difference and the sum of exponentials; difference
          .forward_traffic_bytes = plus(times(n, 2 * e), 3 * x),
          .backward_traffic_bytes = plus(x, times(n, e)),
          .forward_inside = {{x}, "+0 +e -0"}};
}

// Compiled loss: the fp32 values live in registers; the logits, their maximum and the log-sum stay (fp32 per token).
OpFacts cross_entropy_compiled(const Op& op, const Workload& w) {
  if (op.shape.vocab_parts > 1) return split_cross_entropy_compiled(op, w);
  const std::int64_t logits = row_bytes(w, op.shape.vocab), rows = times(w.tokens(), 8);
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = rows,
          .forward_launches = 2,
          .forward_traffic_bytes = plus(2 * logits, rows),
          .backward_traffic_bytes = plus(2 * logits, rows)};
}

// One kernel, which keeps nothing, whoever casts; with a dropout a byte per number, which says what was kept; and with
// a copy of the result, made when what was read is gone.
OpFacts cast(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, op.shape.width), kept = op.shape.dropout > 0 ? n : 0,
                     moved = plus(times(n, size_of(*op.shape.from) + size_of(*op.shape.dtype)), kept);
  OpFacts f{.saved_extra_bytes = kept, .forward_traffic_bytes = moved, .backward_traffic_bytes = moved};
  if (!op.shape.copied) return f;
  const std::int64_t result = times(n, size_of(*op.shape.dtype));
  f.forward_launches = 2;
  f.forward_traffic_bytes = plus(moved, 2 * result);
  f.forward_inside = {{result}, "+0 -i0 +o -0"};
  return f;
}

// Functional collectives save nothing: the gradient of one is another (RedistributeBackward).
OpFacts redistribute(const Op&, const Workload&) { return {}; }

OpFacts opaque(const Op& op, const Workload& w) {
  const std::int64_t bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  return {.saved_extra_bytes = times(w.tokens(), op.shape.opaque_saved_bytes_per_token),
          .forward_traffic_bytes = bytes,
          .backward_traffic_bytes = 2 * bytes};
}

bool keeps_every_second_matmul(const Op& op, std::int64_t matmul) {
  return (op.kind == OpKind::attention && !op.shape.sinks) || keeps_scattered(op) ||
         (op.kind == OpKind::linear && (adds_bias(op) || matmul % 2 == 1));
}

void require_all_tokens(const Op& op, std::string_view implementation) {
  if (op.shape.experts.capacity_factor != 1)
    throw InputError(
        setting("implementation"),
        std::string(implementation) + " drops no tokens: a capacity_factor other than 1 has no meaning there",
        "leave it out of the config, or use native");
}

bool keeps_scattered(const Op& op) {
  return op.kind == OpKind::redistribute && op.shape.redistribution == Redistribution::scatter;
}

std::array<OpRule, kOpKinds> compiled_rules(OpRule rotary, OpRule attention) {
  return {embedding,           position_embedding,     fused_rms_norm_compiled,
          layer_norm_compiled, linear_compiled,        rotary,
          attention,           swiglu_compiled,        gelu,
          add_compiled,        cross_entropy_compiled, opaque};
}

}  // namespace fsdp::pytorch
