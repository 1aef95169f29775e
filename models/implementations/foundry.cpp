// MPT in llm-foundry under Composer: bf16 parameters and activations, LayerNorm in the compute type
// (low_precision_layernorm), flash or Triton attention on views of one packed qkv, exact GELU, a tied head,
// flash-attn's fused cross-entropy, which keeps the bf16 logits and makes no fp32 copy, and DecoupledAdamW, which goes
// through the parameters one by one. Recorded in tests/torch/record_saved.py, which imitates the fused loss. RMSNorm,
// SwiGLU and rotary positions, which MPT has not, are PyTorch's own.
//
// Not modelled: copies that unpad q, k and v before flash-attn's variable-length kernels in some releases, and dropout
// (0 in MPT).
#include <algorithm>

#include "models/implementations/float8.h"
#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

// Composer updates the model's training metrics after the backward of every micro-batch, under autocast and without
// gradients (composer/trainer/trainer.py, _train_microbatch and _eval_train_metrics). MPT has two unless
// `use_train_metrics` is false, cross entropy and perplexity (modeling_mpt.py), which both are F.cross_entropy of all
// logits (composer/metrics/nlp.py): a log-softmax, a cast of its result to fp32 and the sum over labels each; then the
// labels are compared and counted, and two sums added to. F.cross_entropy names the type of its log-softmax, so that
// autocast leaves that as it is, and makes fp32 of the result for nll_loss (PyTorch 1.13 and 2.15; autocast on CPUs
// does otherwise).
constexpr int kTrainMetrics = 2, kMetricLaunches = 7;
// The labels are shifted for them: a copy, its copy back, a fill (composer/models/huggingface.py, eval_forward).
constexpr int kShiftLaunches = 3;

// Each holds the result and its cast at once. Under Composer's amp_fp8 there is te.fp8_autocast in place of
// torch.autocast, and none of them casts. `launches`: for the labels of all.
AfterBackward metrics(const Op& op, const Workload& w, int launches) {
  const std::int64_t n = row_elements(w, op.shape.vocab);
  const bool casts = w.element_bytes == 2 && op.shape.float8 != Float8Recipe::delayed;
  const std::int64_t each = plus(log_softmax_bytes(op, w, w.element_bytes), casts ? times(n, 2 + 4) : 0);
  return {.launches = static_cast<std::int16_t>(launches + kTrainMetrics * kMetricLaunches),
          .traffic_bytes = times(each, kTrainMetrics),
          .inside = {{times(n, w.element_bytes), casts ? times(n, 4) : 0}, "+0 +1 -1 -0 +0 +1 -1 -0"}};
}

// flash-attn's xentropy: logits, labels and the log-sum-exp of each row stay; the loss of each row is summed
// afterwards. Its forward goes over the logits twice (maximum and plain sum, then sum of exponentials), backward reads
// them and writes their gradient. The metrics come after backward and are counted there.
OpFacts fused_cross_entropy(const Op& op, const Workload& w) {
  const std::int64_t logits = row_bytes(w, op.shape.vocab), rows = times(w.tokens(), 4);
  return {.saved_inputs = 0b11,
          .saved_extra_bytes = rows,
          .forward_scratch_bytes = rows,
          .backward_scratch_bytes = rows,
          .forward_launches = 2,
          .backward_launches = 3,
          .forward_traffic_bytes = plus(2 * logits, 3 * rows),
          .backward_traffic_bytes = plus(2 * logits, 3 * rows),
          .after_backward = metrics(op, w, kShiftLaunches)};
}

// `fc_type: te` makes every linear layer of a block te.Linear (llmfoundry/models/layers/fc.py).
OpFacts torch_or_te_linear(const Op& op, const Workload& w) {
  return op.shape.float8 == Float8Recipe::delayed ? float8::linear_delayed(op, w) : linear(op, w);
}

// MPT's `attn_impl: triton`.
OpFacts triton_attention(const Op& op, const Workload& w) {
  OpFacts f = flash_attention(op, w);
  f.attention = AttentionKernel::triton;
  return f;
}

// Between steps Composer accumulates times over ranks (two collectives), computes both metrics over ranks
// (torchmetrics: a barrier and an all-gather for each of two states), and SpeedMonitor sums flops: 11 collectives. Its
// own work there took 5.1 ms from the end of the optimizer to the next forward (Composer 0.13.3, median of 44 steps of
// one rank on an AMD EPYC, with llm-foundry's callbacks and a line to the console each step).
//
// Host: units are few in FSDP1 and have one parameter, of which views are made: 11 us for each original parameter, 12
// of an MPT block, and as much again for streams and events. DecoupledAdamW works through a parameter with nine
// separate operators: decay 2, both moments 2 + 3 each, root, division and sum 2 each, update 4 accesses of 4 bytes: 88
// bytes an element, a fused pass 28.
Implementation foundry(bool compiled) {
  Implementation i{.name = "foundry",
                   .compiled = compiled,
                   .rules = {embedding, position_embedding, fused_rms_norm, layer_norm, torch_or_te_linear,
                             composed_rotary, triton_attention, swiglu, gelu, add, fused_cross_entropy, opaque},
                   .lacks = float8::lacks_but_delayed,
                   .backward_adds_in_place = false,
                   .loss_read_every_step = true,     // Composer sums the loss over ranks and reads it each batch
                   .loop_holds = LoopHolds::logits,  // State.outputs, of composer/core/state.py
                   .keeps_selectively = nullptr,
                   .recompute_stops_early = true,
                   .frames_hold_inputs = true,
                   .optimizer_temp_bytes_per_element = 12,  // sqrt(v), its quotient, and that of the parameter before
                   .optimizer_traffic = 88.0 / 28,
                   .host_seconds_per_launch = 12e-6,
                   .host_seconds_per_unit_hook = 2.5e-4,
                   .host_seconds_between_steps = 5e-3,
                   .collectives_between_steps = 11};
  if (!compiled) return i;
  i.lacks = few_families;
  i.rules = compiled_rules(composed_rotary_compiled, triton_attention);
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = fused_cross_entropy;  // outside of the compiled model
  i.frames_hold_inputs = false;
  i.host_seconds_per_launch = 6e-6;
  return i;
}

// Until PyTorch 2.1 recomputation ran to the end of the block, reentrant or not (pull requests 90105 and 96866 of
// PyTorch, merged in March 2023, after 2.0).
Implementation before_early_stop() {
  Implementation i = foundry(false);
  i.name = "foundry-2023";
  i.recompute_stops_early = false;
  return i;
}

// MosaicGPT of mosaicml/examples until February 2023 (examples/llm/src/mosaic_gpt.py) with `attn_impl: flash`, as its
// own configurations had it then, under Composer before 0.13.2.
// FSDP's mixed precision DEFAULT gathered parameters in fp32 and reduced gradients in bf16 (the other way round since
// Composer's pull request 2047, March 2023), so autocast makes every linear layer's bf16 inputs and weights: the
// residual stream, nn.LayerNorm and the embeddings are fp32, and so are gradients before they are reduced. Bytes of
// 2-byte workloads, x being T * width elements in bf16:
//   embeddings         results and their gradients twice as wide
//   layer_norm         in and out in fp32, and the cast 4 + 2 that the linear layer behind it asks for, both ways
//   linear             its weight and bias cast before, their gradients after
//   add                4 + 2 in, 4 out; backward casts the branch's gradient 4 + 2
//   cross_entropy      a log-softmax in bf16 and the sum over labels in fp32, as the metrics', both ways
//   attention          gathers the rows that are not padding, and puts them back
// Each cast weight is kept for backward, each linear layer's gradient is cast to fp32 when it is there.
namespace january_2023 {

bool autocast(const Workload& w) { return w.element_bytes == 2; }
std::int64_t wide_rows(const Workload& w, std::int64_t width) { return times(row_elements(w, width), 4); }

OpFacts embedding(const Op& op, const Workload& w) {
  OpFacts f = pytorch::embedding(op, w);
  if (!autocast(w)) return f;
  f.wide_outputs = 0b1;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * row_bytes(w, op.shape.width));
  const std::int64_t table = times(times(op.shape.vocab, op.shape.width), w.element_bytes);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, plus(row_bytes(w, op.shape.width), table));
  return f;
}

OpFacts position_embedding(const Op& op, const Workload& w) {
  OpFacts f = pytorch::position_embedding(op, w);
  if (!autocast(w)) return f;
  f.wide_outputs = 0b1;
  f.forward_scratch_bytes = 2 * f.forward_scratch_bytes;
  f.backward_scratch_bytes = 2 * f.backward_scratch_bytes;
  f.forward_traffic_bytes = 2 * f.forward_traffic_bytes;
  f.backward_traffic_bytes = 2 * f.backward_traffic_bytes;
  return f;
}

// Its result in fp32 is a variable of the block's forward.
OpFacts layer_norm(const Op& op, const Workload& w) {
  OpFacts f = pytorch::layer_norm(op, w);
  if (!autocast(w)) return f;
  const std::int64_t x = row_bytes(w, op.shape.width);
  f.variable_bytes = wide_rows(w, op.shape.width);
  f.returns_variables = true;
  f.backward_scratch_bytes = wide_rows(w, op.shape.width);
  f.forward_launches = 2, f.backward_launches = 3;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * x + 3 * x);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 5 * x + 3 * x);
  f.forward_inside = {{wide_rows(w, op.shape.width)}, "+0 +e +o -0"};
  f.backward_inside = {{wide_rows(w, op.shape.width)}, "+0 -y +o -0"};
  return f;
}

OpFacts linear(const Op& op, const Workload& w) {
  OpFacts f = pytorch::linear(op, w);
  if (!autocast(w)) return f;
  const bool bias = op.params.size() > 1;
  const std::int64_t weight = times(times(op.shape.in, op.shape.out), 2), narrow = bias ? times(op.shape.out, 2) : 0;
  const std::int64_t casts = 3 * plus(weight, narrow);
  const std::int16_t launches = bias ? 2 : 1;
  f.saved_extra_bytes = weight;
  f.forward_scratch_bytes = narrow;
  f.backward_scratch_bytes = plus(weight, narrow);
  f.forward_launches = static_cast<std::int16_t>(f.forward_launches + launches);
  f.backward_launches = static_cast<std::int16_t>(f.backward_launches + launches);
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, casts);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, casts);
  f.forward_inside = {{narrow}, "+e +0 +o -0"};
  f.backward_inside = {{weight, narrow}, "+o +0 +1 -e -1 -0"};
  return f;
}

OpFacts add(const Op& op, const Workload& w) {
  OpFacts f = pytorch::add(op, w);
  if (!autocast(w)) return f;
  const std::int64_t x = row_bytes(w, op.shape.width);
  f.wide_outputs = 0b1;
  f.backward_launches = 1;
  f.forward_traffic_bytes = 5 * x;
  f.backward_traffic_bytes = 3 * x;
  return f;
}

// FlashMHA of flash-attn 0.2 (flash_attention.py, bert_padding.py), which MosaicGPT hands the mask of its batch: the
// rows of q, k and v that are not padding (here all) are gathered, attention computed over them, and its result put
// back into a tensor of zeros; backward indexes the one and scatters the other into zeros. The host reads how many
// rows there are, and the longest sequence, in every forward. The kernel keeps what was gathered, its own result and
// the log-sum-exp of each row; over more keys than a block it sums in fp32.
OpFacts unpadded_attention(const Op& op, const Workload& w) {
  OpFacts f = flash_attention(op, w);
  const OpShape& s = op.shape;
  const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)), kv = row_bytes(w, times(s.kv_heads, s.head_dim));
  const std::int64_t sum = times(row_elements(w, times(s.heads, s.head_dim)), 4),
                     each = times(times(w.tokens(), s.heads), 4), qkv = plus(q, 2 * kv);
  f.attention = AttentionKernel::flash1;
  f.saved_inputs = f.saved_outputs = 0;
  f.saved_extra_bytes = plus(plus(qkv, q), plus(each, 8 * w.tokens()));
  f.forward_scratch_bytes = sum;
  f.backward_scratch_bytes = plus(plus(qkv, q), plus(sum, each));
  f.forward_reads = 2;
  f.forward_launches = static_cast<std::int16_t>(f.forward_launches + 11);  // sum, nonzero (4), max, cumsum (2), ...
  f.backward_launches = static_cast<std::int16_t>(f.backward_launches + 3);
  f.forward_copied_bytes = plus(2 * plus(q, 2 * kv), 3 * q);
  f.backward_copied_bytes = plus(2 * q, 3 * plus(q, 2 * kv));
  f.forward_indexed = f.backward_indexed = 2 * plus(q, kv) / w.element_bytes;  // q, k and v one way, the result back
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, f.forward_copied_bytes);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, f.backward_copied_bytes);
  f.forward_inside = {{sum}, "+e +0 -0 +o"};
  f.backward_inside = {{q, qkv, sum, each}, "+0 -y +3 +2 +1 -2 -3 -0 -e +o -1"};
  return f;
}

// Bytes per logit: 2 of the log-softmax and 4 of its cast are kept; in backward the gradient of the cast is as wide and
// there beside them, then it is cast, and the gradient of the logits made. The targets are made anew for each metric:
// rolled, and their last column filled.
OpFacts cross_entropy(const Op& op, const Workload& w) {
  OpFacts f = pytorch::cross_entropy(op, w);
  f.after_backward = metrics(op, w, 2 * kTrainMetrics);
  if (!autocast(w)) return f;
  const std::int64_t n = row_elements(w, op.shape.vocab);
  f.passed_bytes = times(n, 2);
  f.saved_extra_bytes = times(n, 4);
  f.forward_scratch_bytes = 0;
  f.backward_scratch_bytes = times(n, 4);
  f.forward_launches = 3, f.backward_launches = 4;
  f.forward_traffic_bytes = plus(log_softmax_bytes(op, w, 2), times(n, 2 + 4));
  f.backward_traffic_bytes = plus(times(n, 4 + 4 + 2), log_softmax_backward_bytes(op, w, 2));
  f.forward_inside = {};
  f.backward_inside = {{times(n, 4), times(n, 2)}, "+0 -e +1 -0 +o -1"};
  return f;
}

Implementation implementation() {
  Implementation i = before_early_stop();
  i.name = "foundry-2023-01";
  i.lacks = few_families;
  i.autocast = true;
  const auto set = [&](OpKind kind, OpRule rule) { i.rules[static_cast<std::size_t>(kind)] = rule; };
  set(OpKind::embedding, embedding);
  set(OpKind::position_embedding, position_embedding);
  set(OpKind::layer_norm, layer_norm);
  set(OpKind::linear, linear);
  set(OpKind::add, add);
  set(OpKind::attention, unpadded_attention);
  set(OpKind::cross_entropy, cross_entropy);
  return i;
}

}  // namespace january_2023

}  // namespace

const Implementation& foundry_2023_implementation() {
  static const Implementation i = before_early_stop();
  return i;
}

const Implementation& foundry_2023_01_implementation() {
  static const Implementation i = january_2023::implementation();
  return i;
}

const Implementation& foundry_implementation(bool compiled) {
  static const Implementation eager = foundry(false), inductor = foundry(true);
  return compiled ? inductor : eager;
}

}  // namespace fsdp
