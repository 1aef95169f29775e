// prime-rl of January 2026 (commit d8f290ef0) training transformers' dense decoders, 4.56, or its own models of
// experts. Its SFT trainer takes cross-entropy of logits cast to fp32, which the forward's output holds until the step
// ends. Its RL trainer's head and loss are one function that goes over the vocabulary in chunks and makes the logits
// again in backward: an opaque op here (simulator/published/chunked_head.h), with the numbers of that file. AdamW is
// PyTorch's default (foreach).
//
// Blocks are eager, although they are compiled: transformers asks before each attention whether sequences are packed
// (`_is_packed_sequence`, a number on the device), which breaks the graph, and a break inside of a checkpointed module
// makes torch.compile run that module without it (`torch.utils.checkpoint` turns it off for all that it calls). Tried
// on CPU with PyTorch 2.15: compiled and eager steps take the same host time. Its own models do not ask; that their
// blocks are eager, too, is assumed: FlashAttention-3's operators had no code that torch.compile could trace, and
// adapters of experts are chosen by a number on the device.
//
// The host waits for the device, too (OpFacts::forward_reads): once per attention for that question; twice per adapted
// layer (an assertion on the adapters' tokens, repeat_interleave), and where adapters are multiplied in turn for the
// bounds of each slice of tokens; once per chunk of the vocabulary; and once per token of a micro-batch before the RL
// loss (`get_response_lengths` compares positions one by one, on the device). A read costs the host what an eager
// operator does here; SFT and RL trainers on the same H100 differ by so much per token.
#include "models/implementations/prime_rl.h"

#include <algorithm>
#include <array>

#include "models/implementations/grouped_experts.h"
#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

constexpr double kLaunch = 12e-6;    // hf's
constexpr double kIssue = 5e-6;      // what costs add to each operation (planner/costs/defaults.cpp)
constexpr std::int64_t kSlices = 7;  // bounds that are read to slice the tokens of four adapters

std::int32_t reads(std::int64_t n) { return static_cast<std::int32_t>(std::min<std::int64_t>(n, 100'000'000)); }

// The RL trainer's has one number per token as its logits.
OpFacts cross_entropy_of_held_logits(const Op& op, const Workload& w) {
  OpFacts f = cross_entropy(op, w);
  if (op.shape.vocab == 1) f.forward_reads = reads(w.tokens());
  if (w.element_bytes != 2) return f;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(row_elements(w, op.shape.vocab), 4));
  f.forward_scratch_bytes = 0;
  f.forward_inside = {};
  return f;
}

// shape.width: tokens of the vocabulary in a chunk. Alive at once, in chunks of fp32: forward the logits in bf16 (a
// half) and in fp32, their difference from the maximum and its exponential; backward the same, and the probabilities
// and the gradient of the chunk before, which Python's variables still hold. The scripts are a first chunk and a
// second, as which all others go: what replaces a variable is made before that goes, so that the allocator finds no
// place for it and reserves seven chunks for five and a half. They are of the code since 28 January 2026 (commit
// 4fc312b0b); before, temperatures were multiplied in place, which reserves half a chunk less. Launches of a chunk: 3
// make the logits, 15 and 13 do the rest. With a frozen head, too, the gradient of its weight is computed, and dropped
// (shape.in: channels).
template <bool frozen>
OpFacts chunked_head(const Op& op, const Workload& w) {
  if (op.shape.width == 0) return opaque(op, w);
  const std::int64_t chunk = times(row_elements(w, std::min(op.shape.width, op.shape.vocab)), 4), half = chunk / 2,
                     bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  const std::int64_t chunks = (op.shape.vocab + op.shape.width - 1) / op.shape.width;
  const auto launches = [&](std::int64_t each) {
    return static_cast<std::int16_t>(std::min<std::int64_t>(each * chunks, 10000));
  };
  const std::int64_t gradient = frozen ? times(times(op.shape.vocab, op.shape.in), w.element_bytes) : 0;
  OpFacts f{.saved_inputs = 0b1,
            .forward_scratch_bytes = times(chunk, 7) / 2,
            .backward_scratch_bytes = plus(times(chunk, 11) / 2, gradient),
            .forward_launches = launches(18),
            .backward_launches = launches(16),
            .forward_reads = reads(chunks),
            .backward_reads = reads(chunks),
            .forward_traffic_bytes = bytes,
            .backward_traffic_bytes = bytes};
  if (chunks == 1) {
    f.backward_scratch_bytes = plus(times(chunk, 9) / 2, gradient);
    return f;
  }
  f.forward_inside = {{half, half, chunk, chunk, chunk, chunk},
                      "+0 +2 +3 -2 +2 +4 -2 +2 -2 -4 +1 -0 +2 +4 -2 -3 +2 +3 -2 +2 -2 -3 +o -1 -4"};
  f.backward_inside = {{half, half, chunk, chunk, chunk, chunk, chunk, gradient},
                       "+7 +o +0 +2 +3 -2 +2 +4 -2 +2 +5 -2 +1 -1 +1 -0 +2 +6 -2 -3 +2 +3 -2 -4 +2 -5 +4 -2 +0 -0 "
                       "-1 -6 -3 -4 -7 -y"};
  return f;
}

// In its own models q and k stand head by head, being joined anew after their rotation. FlashAttention-2 makes its
// result like q, and that is copied; FlashAttention-3 makes it in the order of tokens. FlashAttention-3's backward has
// dk and dv of the heads that there are, in fp32, and no others of all heads.
template <AttentionKernel kernel, PrimeRlModel model>
OpFacts attention_by(const Op& op, const Workload& w) {
  constexpr bool kOfTransformers = model == PrimeRlModel::of_transformers, kThird = kernel == AttentionKernel::flash3;
  OpFacts f = flash_attention(op, w);
  if (!kOfTransformers && !kThird) f = with_copied_result(f, op, w);
  const OpShape& s = op.shape;
  if (kThird && s.kv_heads != s.heads && !s.packed) {
    const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)),
                       kv = row_elements(w, times(s.kv_heads, s.head_dim));
    f.backward_scratch_bytes = plus(f.backward_scratch_bytes - 2 * q, times(kv, 2 * 4));
    f.backward_traffic_bytes = plus(f.backward_traffic_bytes - 4 * q, times(kv, 2 * (4 + 4 + 2)));
  }
  f.attention = kernel;
  if (kOfTransformers) f.forward_reads = 1;
  return f;
}

template <PrimeRlAdapters adapters>
OpFacts adapted(const Op& op, const Workload& w) {
  OpFacts f = scale(op, w);
  if (op.shape.experts.count > 0) return f;
  const std::int64_t stacked = times(op.shape.in, w.element_bytes);  // copies of all adapters of the layer
  f.saved_extra_bytes = f.variable_bytes = f.variable_saved_bytes = stacked;
  f.forward_launches = 3, f.backward_launches = 3;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * stacked);
  f.forward_reads = reads(adapters == PrimeRlAdapters::in_turn ? 2 + kSlices : 2);
  return f;
}

template <PrimeRlAdapters adapters, PrimeRlModel model, AttentionKernel kernel>
Implementation prime_rl_form() {
  Implementation i = hf_implementation(false);
  const auto set = [&](OpKind kind, OpRule rule) { i.rules[static_cast<std::size_t>(kind)] = rule; };
  i.name = "prime-rl";
  set(OpKind::attention, attention_by<kernel, model>);
  set(OpKind::cross_entropy, cross_entropy_of_held_logits);
  set(OpKind::opaque, chunked_head<adapters != PrimeRlAdapters::none>);
  set(OpKind::scale, adapted<adapters>);
  if (model != PrimeRlModel::of_transformers) {
    constexpr bool kAdapted = model == PrimeRlModel::adapted_experts;
    set(OpKind::moe_route, torchtitan::moe_route);
    set(OpKind::moe_dispatch, kAdapted ? torchtitan::adapted_moe_dispatch : torchtitan::gathered_moe_dispatch);
    set(OpKind::moe_combine, kAdapted ? torchtitan::adapted_moe_combine : torchtitan::padded_moe_combine);
  }
  i.frames_hold_adapters = true;
  step_by_foreach(i);
  i.host_seconds_per_read = kLaunch + kIssue;
  return i;
}

template <PrimeRlAdapters adapters, PrimeRlModel model>
const Implementation& form(AttentionKernel kernel) {
  static const std::array<Implementation, 2> kForms = {prime_rl_form<adapters, model, AttentionKernel::flash2>(),
                                                       prime_rl_form<adapters, model, AttentionKernel::flash3>()};
  return kForms[kernel == AttentionKernel::flash3 ? 1 : 0];
}

template <PrimeRlAdapters adapters>
const Implementation& form(AttentionKernel kernel, PrimeRlModel model) {
  switch (model) {
    case PrimeRlModel::experts: return form<adapters, PrimeRlModel::experts>(kernel);
    case PrimeRlModel::adapted_experts: return form<adapters, PrimeRlModel::adapted_experts>(kernel);
    default: return form<adapters, PrimeRlModel::of_transformers>(kernel);
  }
}

}  // namespace

const Implementation& prime_rl_implementation(AttentionKernel kernel, PrimeRlAdapters adapters, PrimeRlModel model) {
  switch (adapters) {
    case PrimeRlAdapters::grouped: return form<PrimeRlAdapters::grouped>(kernel, model);
    case PrimeRlAdapters::in_turn: return form<PrimeRlAdapters::in_turn>(kernel, model);
    default: return form<PrimeRlAdapters::none>(kernel, model);
  }
}

}  // namespace fsdp
