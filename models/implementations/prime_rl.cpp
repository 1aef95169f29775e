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
//
// shape.positions: tokens in a chunk, 0: all, of the code since 9 March 2026, which does the same for each pair of
// chunks, and keeps the logarithm of each token's sum. Launches and reads are as recorded
// (tests/torch/record_token_chunks.py): 20 and 18 of a pair, 16 and 6 of a chunk of tokens beside them, and four; the
// host asks each pair whether it has labels, and reads where they are, of fake data in one chunk of the vocabulary,
// three and four times.
template <bool frozen>
OpFacts chunked_head(const Op& op, const Workload& w) {
  if (op.shape.width == 0) return opaque(op, w);
  const bool of_tokens = op.shape.positions > 0;
  const std::int64_t tokens = of_tokens ? std::min(op.shape.positions, w.tokens()) : w.tokens(),
                     parts = (w.tokens() + tokens - 1) / tokens;
  const std::int64_t chunk = times(times(tokens, std::min(op.shape.width, op.shape.vocab)), 4), half = chunk / 2,
                     bytes = times(w.tokens(), op.shape.opaque_bytes_per_token);
  const std::int64_t chunks = times((op.shape.vocab + op.shape.width - 1) / op.shape.width, parts);
  const auto launches = [&](std::int64_t each, std::int64_t beside = 0) {
    return static_cast<std::int16_t>(std::min<std::int64_t>(each * chunks + beside, 32000));
  };
  const std::int64_t gradient = frozen ? times(times(op.shape.vocab, op.shape.in), w.element_bytes) : 0;
  OpFacts f{.saved_inputs = 0b1,
            .forward_scratch_bytes = times(chunk, 7) / 2,
            .backward_scratch_bytes = plus(times(chunk, 11) / 2, gradient),
            .forward_launches = of_tokens ? launches(20, 16 * parts) : launches(18),
            .backward_launches = of_tokens ? launches(18, 6 * parts + 4) : launches(16),
            .forward_reads = reads(of_tokens ? chunks + 3 * parts : chunks),
            .backward_reads = reads(of_tokens ? chunks + 4 * parts : chunks),
            .forward_traffic_bytes = bytes,
            .backward_traffic_bytes = bytes};
  if (of_tokens) f.saved_extra_bytes = times(w.tokens(), 4);
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

// lora/multi_linear.py's loop over the adapters that are held (shape.groups; of one alone it is left out), of which the
// first has all tokens: what it slices for them is the layer's input (shape.width) itself. Results of all are joined
// (torch.cat). Backward comes to the first adapter last. Before, each other one has made zeros of the input for its
// slice, and zeros of its factors; while these are added up, the gradient of what was joined is there. Each selection
// of a stacked factor makes zeros of all of them, which are added up, too.
OpFacts adapter_linear_in_turn(const Op& op, const Workload& w) {
  OpFacts f = linear(op, w);
  const std::int64_t held = op.shape.groups, e = w.element_bytes, others = held - 1;
  if (held < 2) return f;
  const std::int64_t factor = times(times(op.shape.in, op.shape.out), e), x = row_bytes(w, op.shape.width);
  const auto add_backward = [&](std::int64_t launches, std::int64_t bytes) {
    f.backward_launches = static_cast<std::int16_t>(f.backward_launches + std::min<std::int64_t>(launches, 10000));
    f.backward_traffic_bytes = plus(f.backward_traffic_bytes, bytes);
  };
  // Zeros of a factor; of all, with a part copied into them; sums.
  add_backward(plus(others, plus(2 * held, others)),
               times(factor, others + held * held + 2 * held + 3 * others * held));
  if (op.shape.out < op.shape.in) {  // A, of what is sliced
    add_backward(2 * others, times(x, others + 3 * others));
    f.backward_scratch_bytes = x;
    f.backward_inside = {{x}, "+o +0 -0"};
    return f;
  }
  const std::int64_t y = row_bytes(w, op.shape.out);
  f.forward_launches += 1;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 2 * y);
  f.forward_scratch_bytes = plus(f.forward_scratch_bytes, y);
  // Stacks of both factors, which the scale's saved bytes have been until its backward ended, and a gradient of A.
  const std::int64_t down = times(times(op.shape.in, op.shape.width), e),
                     stacks = plus(times(held, plus(factor, down)), down);
  f.backward_scratch_bytes = plus(2 * x, stacks);
  f.backward_inside = {{x, x, stacks}, "+2 +0 +1 -1 -0 -y +o -2"};
  return f;
}

// lora/multi_moe.py's _forward_for_loop, an expert's part of it; n: rows of the expert, d, f, r: a row's channels,
// those of the hidden layer, the rank. Forward: of each of three matrices the product, two of its adapter, the factor
// and the sum; silu and the product with up. Autograd keeps what silu reads and makes, up, their product and three
// products of rank r. All that has a name is a variable of the loop until the next expert's takes its place: three
// products of each kind, sums, the hidden layer.
//
// Backward is that of slices and selections. Each writes zeros of the whole it was taken from, copies its part into
// them, and autograd adds that to what other experts left: the rows of all experts here, and all experts' matrices of
// each of six adapters (gradients of the parameters; those sums are operations of their own). 39 launches: three
// factors and three products of matrices, twelve of adapters, six selections and a slice (two each), a sum of the
// hidden layer's two gradients, three of the row's four, three of silu and its product.
OpFacts expert_in_turn(const Op& op, const Workload& w) {
  const std::int64_t e = w.element_bytes, n = rows(op.shape.experts, w), d = times(times(n, op.shape.in), e),
                     f = times(times(n, op.shape.out), e), r = times(times(n, op.shape.width), e);
  const std::int64_t all_rows = times(d, op.shape.groups);
  const std::int64_t matrices =
      times(times(3 * op.shape.groups, op.shape.width), times(plus(op.shape.in, op.shape.out), e));
  const std::int64_t kept = plus(3 * f, 3 * r);  // of variables
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = plus(kept, f),
          .variable_bytes = plus(kept, plus(4 * f, 2 * d)),
          .variable_saved_bytes = kept,
          .forward_scratch_bytes = d,
          .forward_launches = 17,
          .backward_launches = 39,
          .forward_traffic_bytes = plus(15 * f, 5 * d),
          .backward_traffic_bytes = plus(plus(all_rows, matrices), plus(16 * f, 13 * d)),
          .backward_inside = {{d, f, f, f, f, d, d},
                              "+0 -0 +1 +2 -2 +3 +4 -1 +2 -4 +1 -1 +5 +6 -6 -3 +1 -1 +6 -6 +6 -6 -2 -e +o0 -5"}};
}

// torch.cat; its backward makes views.
OpFacts joined_experts(const Op& op, const Workload& w) {
  return {.backward_launches = 0, .forward_traffic_bytes = 2 * width_bytes(op, w)};
}

template <bool frozen>
OpFacts opaque_op(const Op& op, const Workload& w) {
  if (is_expert_in_turn(op)) return expert_in_turn(op, w);
  return joins_experts(op) ? joined_experts(op, w) : chunked_head<frozen>(op, w);
}

// It reads how many rows each expert has, too.
OpFacts moe_dispatch_in_turn(const Op& op, const Workload& w) {
  OpFacts f = torchtitan::adapted_moe_dispatch(op, w);
  f.forward_reads += 1;
  return f;
}

template <PrimeRlAdapters adapters, PrimeRlModel model, AttentionKernel kernel>
Implementation prime_rl_form() {
  Implementation i = hf_implementation(false);
  const auto set = [&](OpKind kind, OpRule rule) { i.rules[static_cast<std::size_t>(kind)] = rule; };
  i.name = "prime-rl";
  set(OpKind::attention, attention_by<kernel, model>);
  set(OpKind::cross_entropy, cross_entropy_of_held_logits);
  set(OpKind::opaque, opaque_op<adapters != PrimeRlAdapters::none>);
  set(OpKind::scale, adapted<adapters>);
  if (adapters == PrimeRlAdapters::in_turn) set(OpKind::linear, adapter_linear_in_turn);
  if (model != PrimeRlModel::of_transformers) {
    constexpr bool kAdapted = model == PrimeRlModel::adapted_experts;
    set(OpKind::moe_route, torchtitan::moe_route);
    set(OpKind::moe_dispatch, !kAdapted                              ? torchtitan::gathered_moe_dispatch
                              : adapters == PrimeRlAdapters::in_turn ? moe_dispatch_in_turn
                                                                     : torchtitan::adapted_moe_dispatch);
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
