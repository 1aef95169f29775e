// transformers' Llama, Mistral, Qwen, GPT-2 and MPT as its Trainer runs them: bf16 parameters and activations, fp32
// inside RMSNorm and the loss, which upcasts all logits. "hf" calls scaled_dot_product_attention without a mask (flash,
// which takes grouped heads; sdpa.cpp); MPT's ALiBi has no such path and "hf-eager-attention" takes it nowhere: scores
// are multiplied out. Compiled: the whole model, its loss included. Figures were recorded (tests/torch/record_saved.py
// calls transformers 5.23); e: bytes of an element, n: elements of the result.
//
// Products in 8 bits are torchao's: float8.cpp, whose rules hold here, too (the same recordings; compiled blocks:
// record_float8_saved.py).
//
// Windows no longer than the sequence need a mask, which leaves the flash path (sdpa.cpp). Not modelled: dropout
// (GPT-2 has 10 %; fine-tuning turns it off), padding masks, and the one or two masks themselves.
#include <algorithm>

#include "models/graph/four_bits.h"
#include "models/implementations/float8.h"
#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

// As written out by LlamaRMSNorm, which holds the fp32 product and the variance until it returns.
OpFacts rms_norm(const Op& op, const Workload& w) {
  if (op.shape.wide_weight) return wide_rms_norm(op, w);
  OpFacts f = upcast_rms_norm(op, w);
  const std::int64_t n = row_elements(w, times(op.shape.groups, op.shape.width)),
                     r = times(times(w.tokens(), op.shape.groups), 4);
  f.forward_scratch_bytes = plus(w.element_bytes == 2 ? times(n, 4) : 0, r);
  if (op.shape.in > op.shape.width)  // the gradient of a part of its input is as large as the input
    f.backward_scratch_bytes =
        std::max<std::int64_t>(f.backward_scratch_bytes - row_bytes(w, op.shape.in - op.shape.width), 0);
  return f;
}

OpFacts rotary(const Op& op, const Workload& w) {
  if (op.shape.packed) return packed_rotary(op, w);
  if (op.shape.by_halves) return halved_rotary(op, w);
  if (op.shape.in > 0) return op.shape.wide_angles ? complex_latent_rotary(op, w) : latent_rotary(op, w);
  if (op.shape.rotated > 0) return rotary_of_parts(op, w);
  if (op.shape.wide_angles) return wide_rotary(op, w);
  return composed_rotary(op, w);
}

// bitsandbytes 0.50 of more than 1,536 tokens (fewer can have one kernel that makes no weight): the scales, of 8 bits
// in fp32 and once more with what was subtracted from them, the weight in 16 bits, the product, of which peft's adapted
// layer keeps a copy. Nothing of the input is saved. Backward makes the weight again; its scales are gone by then.
// n: bytes of the weight in 16 bits, s: of its scales in fp32.
OpFacts linear_in_four_bits(const Op& op, const Workload& w) {
  const OpShape& o = op.shape;
  const std::int64_t numbers = times(o.in, o.out), n = times(numbers, w.element_bytes), s = scales_of(numbers) * 4,
                     y = row_bytes(w, o.out), copy = o.copied ? y : 0;
  const bool eight = o.four_bits == FourBits::nf4_double;
  const std::int64_t scales = eight ? s : 0;
  const std::int64_t unpacked = plus(plus(numbers / 2, n), plus(s, times(scales, 4)));  // read and written
  OpFacts f = pytorch::linear(op, w);
  f.saved_inputs = 0;
  f.forward_scratch_bytes = std::max(plus(times(scales, 2), n), copy);
  f.backward_scratch_bytes = plus(scales, n);
  f.forward_launches = static_cast<std::int16_t>(2 + (eight ? 2 : 0) + (o.copied ? 1 : 0));
  f.backward_launches = static_cast<std::int16_t>(3 + (eight ? 2 : 0));  // with the product for the weight's gradient
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, plus(unpacked, 2 * copy));
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 2 * unpacked);  // half of all is the input's gradient's
  if (o.unpacked_wide) {
    // Under autocast, called with fp32 (planner/tensor/prepared_casts.h; bitsandbytes 0.43): the weight is made in the
    // type that it was packed from, cast to fp32 and back.
    const std::int64_t wide = times(numbers, 4);
    f.forward_scratch_bytes = plus(wide, n);
    f.forward_launches += 2;
    f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * plus(wide, n));
    f.forward_inside = {{wide, n, scales}, "+2 +1 -2 +0 -1 +1 +o -1 -0"};
  } else if (eight && o.copied) f.forward_inside = {{n, y, scales, scales}, "+2 +3 +0 +1 -0 -3 -2 +o -1"};
  else if (eight) f.forward_inside = {{n, 0, scales, scales}, "+2 +3 +0 +o -0 -3 -2"};
  else if (o.copied) f.forward_inside = {{n, y}, "+0 +1 -0 +o -1"};
  else f.forward_inside = {{n}, "+0 +o -0"};
  if (eight) f.backward_inside = {{n, scales}, "+1 +0 -1 +o -0 -y"};
  else f.backward_inside = {{n}, "+0 +o -0 -y"};
  return f;
}

// Dropout's fused kernel, before an adapter's product, makes what that reads and a byte per number that says which were
// kept; both stay for backward instead of the input. There the product's gradient is made first, and what was read
// goes.
OpFacts linear_after_dropout(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, op.shape.in), kept = row_elements(w, op.shape.in);
  OpFacts f = pytorch::linear(op, w);
  f.saved_inputs = 0;
  f.saved_extra_bytes = plus(x, kept);
  f.backward_scratch_bytes = x;
  f.forward_launches += 1, f.backward_launches += 1;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, plus(2 * x, kept));
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, plus(2 * x, kept));
  f.forward_inside = {{}, "+e +o"};
  f.backward_inside = {{x, kept}, "+0 -y -e +1 +o -1 -0"};
  return f;
}

// Autocast casts the weight, which stays for the gradient of the input, and the weight's gradient.
OpFacts linear_of_cast_weight(OpFacts f, const Op& op, const Workload& w) {
  const std::int64_t numbers = times(op.shape.in, op.shape.out), moved = times(numbers, 4 + w.element_bytes);
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(numbers, w.element_bytes));
  f.forward_launches += 1, f.backward_launches += 1;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, moved);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, moved);
  return f;
}

OpFacts linear(const Op& op, const Workload& w) {
  if (op.shape.cast_weight)
    return linear_of_cast_weight(op.shape.dropout > 0 ? linear_after_dropout(op, w) : pytorch::linear(op, w), op, w);
  if (op.shape.dropout > 0) return linear_after_dropout(op, w);
  if (op.shape.four_bits != FourBits::none) return linear_in_four_bits(op, w);
  return op.shape.in_fp32 && w.element_bytes == 2 ? linear_in_fp32(op, w) : pytorch::linear(op, w);
}

OpFacts swiglu(const Op& op, const Workload& w) {
  return op.shape.clamped ? clamped_swiglu(op, w) : pytorch::swiglu(op, w);
}

OpFacts moe_route(const Op& op, const Workload& w) {
  if (op.shape.of_chosen) return moe_route_of_chosen(op, w);
  if (op.shape.sigmoid) return sigmoid_moe_route(op, w);
  return op.shape.in_fp32 ? wide_moe_route(op, w) : grouped_moe_route(op, w);
}

// gpt-oss's: a score of each head's own stands beside those of the keys, and takes its share of the softmax. Queries
// stand head by head. Grouped keys and values are copied to all heads first; others are not, but that values of several
// sequences are copied after the softmax (`late`). s: bytes of the scores, s1: with the column beside them, m: of a
// number per row. Saved: the probabilities, where each row's maximum is, and the copies; the probabilities are
// returned, too. Worst moments: the maximum's subtraction, beside the masked scores, which a variable holds; the
// maximum's gradient, put between zeros and copied, beside the softmax's.
OpFacts attention_with_sinks(const Op& op, const Workload& w) {
  const OpShape& o = op.shape;
  const std::int64_t q = head_bytes(w, o, o.heads), kv = head_bytes(w, o, o.kv_heads);
  const std::int64_t rows = times(w.tokens(), o.heads), m = times(rows, w.element_bytes), places = times(rows, 8),
                     s = times(m, w.seq_len), s1 = plus(s, m);
  const bool grouped = o.kv_heads != o.heads, several = w.sequences > 1, copied = grouped || several;
  const std::int64_t copies = grouped ? times(q, 2) : copied ? q : 0, keys = grouped ? q : 0, late = copies - 2 * keys;
  const auto at_least_0 = [](std::int64_t bytes) { return std::max<std::int64_t>(bytes, 0); };
  const std::int64_t joined = at_least_0(plus(s1, m) - late), factor = at_least_0(s1 - late);
  return {
      .saved_inputs = static_cast<std::uint8_t>(grouped  ? 0b1
                                                : copied ? 0b11
                                                         : 0b111),
      .saved_extra_bytes = plus(plus(s1, places), copies),
      .variable_bytes = s1,
      .variable_saved_bytes = s1,
      .returns_variables = true,
      .forward_scratch_bytes = std::max(plus(s, std::max(joined, factor)) - q, plus(s1, q)),
      .backward_scratch_bytes =
          at_least_0(plus(times(s1, 2), m) - times(plus(q, kv), 2) - times(o.heads, w.element_bytes)),
      .forward_launches = static_cast<std::int16_t>(grouped   ? 11
                                                    : several ? 10
                                                              : 9),
      .backward_launches = static_cast<std::int16_t>((several ? 14 : 13) + (grouped ? 2 : 0)),
      .forward_traffic_bytes = plus(plus(times(s, 5), times(s1, 8)), plus(times(q, 6), plus(copies, times(kv, 2)))),
      .backward_traffic_bytes = plus(plus(times(s, 7), times(s1, 14)), plus(times(q, grouped ? 12 : 10), times(kv, 4))),
      .forward_inside = {{s, joined, factor, plus(q, late)}, "+0 +1 +e -1 +2 -0 +3 +o -2 -3"},
      .backward_inside = {{q, q, s, at_least_0(s1 - q), s1, plus(keys, places), s1, plus(s1, m)},
                          "+0 -y +1 +2 -0 +3 -2 +4 -e -3 +5 +6 +7 -6 +6 -4 -7 +2 -6 +0 +o0 -2 -5 -i0 -i1 +o1 -0 "
                          "+o2 -1"},
      .attention = AttentionKernel::math};
}

// softmax(q k^T scale + mask) v. q, k, v are copied to be multiplied (k and v once more where heads are grouped, of
// which the copy of the copy is not needed); the copies and the probabilities, in fp32 and in the type of v, are saved.
// s: bytes of the scores, one head after the other. Worst moments: the softmax (scores, in bf16 also their fp32 copy,
// and probabilities), and its backward.
OpFacts eager_attention(const Op& op, const Workload& w) {
  const OpShape& o = op.shape;
  if (o.sinks) return attention_with_sinks(op, w);
  const std::int64_t q = row_bytes(w, times(o.heads, o.head_dim)), kv = row_bytes(w, times(o.kv_heads, o.head_dim));
  const std::int64_t s = times(times(times(w.tokens(), w.seq_len), o.heads), w.element_bytes);
  const bool cast = w.element_bytes == 2, grouped = o.kv_heads != o.heads;
  const bool packed = o.packed && op.inputs.size() == 2, capped = o.cap != 0;
  const std::int64_t gradients = packed ? 3 * plus(q, kv) : 2 * plus(q, kv);  // of v: as large as q, k and v
  const auto at_least_0 = [](std::int64_t bytes) { return std::max<std::int64_t>(bytes, 0); };
  return {.saved_extra_bytes = plus(times(s, (cast ? 3 : 1) + (capped ? 1 : 0)), times(q, 3)),
          .forward_scratch_bytes = at_least_0(times(s, cast ? 2 : 1) - times(q, grouped ? 1 : 2)),
          .backward_scratch_bytes = at_least_0(times(s, cast ? 3 : 2) - gradients),
          .forward_launches = static_cast<std::int16_t>((cast ? 11 : 9) + (capped ? 3 : 0)),
          .backward_launches = static_cast<std::int16_t>((cast ? 11 : 9) + (grouped ? 3 : 0) + (capped ? 3 : 0)),
          .forward_traffic_bytes = plus(times(s, (cast ? 16 : 8) + (capped ? 6 : 0)), times(q, 8)),
          .backward_traffic_bytes = plus(times(s, (cast ? 18 : 9) + (capped ? 7 : 0)), times(q, 14)),
          .attention = AttentionKernel::math};
}

OpFacts attention(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  if (s.alibi || s.sinks) return eager_attention(op, w);
  if (s.v_head_dim > 0) return latent_attention(op, w);
  if (s.window > 0 && s.window <= w.seq_len) return masked_attention(op, w);
  return sdpa_attention(op, w);
}

// transformers refuses caps of scores with scaled_dot_product_attention.
std::string_view lacks(const Op& op) {
  if (op.shape.float8 == Float8Recipe::delayed) return few_families(op);
  if (op.kind != OpKind::attention) return {};
  if (op.shape.cap != 0) return "attention with capped scores";
  if (op.shape.always_masked) return "attention with a mask that is always written out (Falcon's)";
  return {};
}
std::string_view eager_lacks(const Op& op) {
  const bool latent = op.shape.v_head_dim > 0 || (op.kind == OpKind::rms_norm && op.shape.in > op.shape.width);
  if (latent) return "latent attention";
  if (op.kind == OpKind::rotary && op.inputs.size() == 2) return "rotary of a part of each head, of q and k at once";
  return op.shape.cap != 0 ? std::string_view() : lacks(op);
}

// NewGELUActivation writes the tanh approximation out: x/2, tanh and 1 + tanh are saved beside x.
OpFacts gelu(const Op& op, const Workload& w) {
  if (!op.shape.tanh) return pytorch::gelu(op, w);
  if (op.shape.fast) return gelu_fast(op, w);
  const std::int64_t x = row_bytes(w, op.shape.width);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = 3 * x,
          .backward_scratch_bytes = x,
          .forward_launches = 8,
          .backward_launches = 11,
          .forward_traffic_bytes = times(x, 18),
          .backward_traffic_bytes = times(x, 28)};
}

// torch.compile(model) compiles the loss where the model computes it. A training loop of its own does that eagerly.
OpFacts loss_of_compiled(const Op& op, const Workload& w) {
  return w.loss_in_model ? cross_entropy_compiled(op, w) : cross_entropy(op, w);
}

Implementation hf(std::string_view name, bool compiled, OpRule attention_rule) {
  Implementation i{.name = name,
                   .compiled = compiled,
                   .rules = {embedding, position_embedding, rms_norm, layer_norm, linear, rotary, attention_rule,
                             swiglu, gelu, add, cross_entropy, opaque, moe_route, grouped_moe_dispatch,
                             grouped_expert_linear, grouped_moe_combine, geglu, scale, soft_cap},
                   .lacks = attention_rule == eager_attention ? eager_lacks : lacks,
                   .backward_adds_in_place = false,
                   .loss_read_every_step = true,  // Trainer looks for NaN in the loss (logging_nan_inf_filter)
                   .loss_in_model = true,
                   // Trainer checkpoints whole layers; a script of one's own can choose, as the emitted one does.
                   .keeps_selectively = attention_rule == eager_attention ? nullptr : keeps_every_second_matmul,
                   .keeps_unneeded_results = true,
                   .recompute_stops_early = true,
                   .frames_hold_inputs = true,
                   .frames_hold_variables = true,
                   .peft_casts = true,
                   .optimizer_temp_bytes_per_element = 0,  // adamw_torch_fused since torch 2.8
                   .persistent_products = false,
                   .host_seconds_per_launch = 12e-6,
                   .host_seconds_per_unit_hook = 5e-4};
  constexpr auto kRedistribute = static_cast<std::size_t>(OpKind::redistribute);
  i.rules[kRedistribute] = redistribute;
  if (!compiled) return i;
  i.rules = compiled_rules(composed_rotary_compiled, attention_rule);  // what Inductor makes of experts is not known,
  i.lacks = float8::lacks;                                             // nor of what few families have
  i.rules[kRedistribute] = redistribute;
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = loss_of_compiled;
  i.frames_hold_inputs = i.frames_hold_variables = i.peft_casts = false;
  i.keeps_selectively = nullptr;
  i.keeps_unneeded_results = false;
  i.float8_copies = Float8Copies::of_gathered_and_values;
  i.host_seconds_per_launch = 6e-6;
  return i;
}

// The bytes of logits that are copied in fp32 without each sequence's last token, which of one sequence is no copy; and
// what that adds to the loss: the copy's kernel, and in backward the padding of its gradient.
std::int64_t copy_logits(OpFacts& f, const Op& op, const Workload& w) {
  const std::int64_t wide = times(row_elements(w, op.shape.vocab), 4), copy = w.sequences > 1 ? wide : 0;
  f.forward_launches = static_cast<std::int16_t>(f.forward_launches + (copy > 0 ? 1 : 0));
  f.backward_launches = static_cast<std::int16_t>(f.backward_launches + 2);
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * copy);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 3 * wide);
  f.backward_scratch_bytes = 2 * wide;
  f.backward_inside = {{wide, wide, wide}, "+0 +1 -0 -e +2 -1 +o -2"};
  return copy;
}

// transformers 4.31 (2023): logits are cast to fp32 at once, and, where there are several sequences, copied without
// their last tokens, which the function's variable holds until it returns. The log-probabilities stay for backward.
OpFacts cross_entropy_of_shifted(const Op& op, const Workload& w) {
  OpFacts f = cross_entropy(op, w);
  if (w.element_bytes != 2) return f;
  f.forward_scratch_bytes = copy_logits(f, op, w);
  f.forward_inside = {{f.forward_scratch_bytes}, "-i0 +0 +e -0"};
  return f;
}

// Before 4.49 (February 2025) the loss's function cast the logits and copied them so (loss/loss_utils.py of 4.48;
// tests/torch/early/record_hf_loss.py). `cast_first`: before 4.46 the models cast them, and let go of the others.
OpFacts cross_entropy_of_copied(const Op& op, const Workload& w, bool cast_first) {
  OpFacts f = cross_entropy(op, w);
  if (w.element_bytes != 2 || w.loss_chunks > 1 || op.shape.vocab_parts > 1) return f;
  const std::int64_t wide = times(row_elements(w, op.shape.vocab), 4), copy = copy_logits(f, op, w);
  f.forward_scratch_bytes = plus(wide, copy);
  if (cast_first) f.forward_inside = {{wide, copy}, "+0 -i0 +1 +e -1 -0"};
  else f.forward_inside = {{wide, copy}, "+0 +1 +e -1 -0"};
  return f;
}
template <bool CastFirst>
OpFacts copied_loss(const Op& op, const Workload& w) {
  return cross_entropy_of_copied(op, w, CastFirst);
}

// aten::mean saved what it averages until PyTorch 2.2 (pull request 109935): the squares, in fp32.
OpFacts rms_norm_with_squares(const Op& op, const Workload& w) {
  OpFacts f = rms_norm(op, w);
  if (w.element_bytes == 2)
    f.saved_extra_bytes = plus(f.saved_extra_bytes, times(row_elements(w, times(op.shape.groups, op.shape.width)), 4));
  return f;
}

Implementation hf_2023(std::string_view name, OpRule attention_rule, LoopHolds held) {
  Implementation i = hf(name, false, attention_rule);
  i.persistent_products = true;
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cross_entropy_of_shifted;
  i.rules[static_cast<std::size_t>(OpKind::rms_norm)] = rms_norm_with_squares;
  i.loop_holds = held;
  i.sdpa = AttentionKernel::sdpa_before_2_11;
  step_by_foreach(i);
  return i;
}

}  // namespace

const Implementation& hf_2023_cache_implementation() {
  static const Implementation one = hf_2023("hf-2023-cache", attention, LoopHolds::outputs);
  return one;
}

const Implementation& hf_2023_eager_implementation(LoopHolds held) {
  static const Implementation outputs = hf_2023("hf-2023-cache-eager", eager_attention, LoopHolds::outputs),
                              loss = hf_2023("hf-2023-cache-eager-loss", eager_attention, LoopHolds::loss);
  return held == LoopHolds::loss ? loss : outputs;
}

const Implementation& hf_implementation(bool compiled) {
  static const Implementation eager = hf("hf", false, attention), inductor = hf("hf", true, attention);
  return compiled ? inductor : eager;
}

Implementation by_foreach(Implementation fused) {
  step_by_foreach(fused);
  return fused;
}

Implementation copying_logits(Implementation newest, bool cast_first) {
  if ((newest.name == "hf" || newest.name == "hf-4") && !newest.compiled)
    newest.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cast_first ? copied_loss<true> : copied_loss<false>;
  return newest;
}

Implementation keeping_float8_casts(Implementation compiled, bool again) {
  compiled.float8_copies = again ? Float8Copies::none : Float8Copies::of_all;
  return compiled;
}

const Implementation& hf_eager_attention_implementation() {
  static const Implementation eager = hf("hf-eager-attention", false, eager_attention);
  return eager;
}

}  // namespace fsdp
