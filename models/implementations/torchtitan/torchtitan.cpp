// torchtitan's Llama on PyTorch 2.x, eager or under torch.compile (per block, and the loss), with the bf16 parameters
// and activations that FSDP2's mixed precision gives: as of the beginning of 2026, and as it was when most published
// runs were made.
#include <algorithm>
#include <span>
#include <vector>

#include "models/graph/experts.h"
#include "models/implementations/float8.h"
#include "models/implementations/grouped_experts.h"
#include "models/implementations/pytorch_ops.h"
#include "models/implementations/torchtitan/attention.h"
#include "models/implementations/torchtitan/gpt_oss.h"

namespace fsdp {
namespace {

using namespace pytorch;

// DeepSeek's, of queries and of what all heads' keys share.
bool turns_parts(const Op& op) { return op.inputs.size() == 2 && op.shape.in > 0; }

// apply_rotary_emb: x.float() viewed as complex, times freqs_cis (a buffer without gradient, so nothing of x is saved),
// then type_as(x). The fp32 copy and the fp32 product are alive together, and with the result: 8 bytes per element;
// backward mirrors it (cast, copy the conjugate of the angles, multiply, cast), but by then the gradient of the result
// is gone and that of the input not there. fp32 activations need no casts: the product is the output.
OpFacts rotary(const Op& op, const Workload& w) {
  if (turns_parts(op)) return torchtitan::complex_rotary_of_parts(op, w);
  if (op.shape.wide_angles) return torchtitan::cos_sin_rotary(op, w);
  const std::int64_t n = row_elements(w, times(op.shape.heads, op.shape.head_dim)),
                     angles = times(times(w.seq_len, op.shape.head_dim), 4);
  if (w.element_bytes != 2)
    return {.backward_scratch_bytes = angles,
            .backward_launches = 2,
            .forward_traffic_bytes = times(n, 2 * w.element_bytes),
            .backward_traffic_bytes = times(n, 2 * w.element_bytes)};
  const std::int64_t traffic = times(n, (w.element_bytes + 4) + (4 + 4) + (4 + w.element_bytes));
  return {.forward_scratch_bytes = times(n, 8),
          .backward_scratch_bytes = plus(times(n, 4), angles),
          .forward_launches = 3,
          .backward_launches = 4,
          .forward_traffic_bytes = traffic,
          .backward_traffic_bytes = traffic,
          .forward_inside = {{times(n, 4), times(n, 4)}, "+0 +1 +o -0 -1"},
          .backward_inside = {{times(n, 4), angles, times(n, 4)}, "+0 -y +1 +2 -0 -1 +o -2"}};
}
// Inductor has no code for complex products, so the product stays a kernel of its own between two fp32 tensors; only
// the casts around it fuse with what views do. Memory as in eager, one launch less.
OpFacts rotary_compiled(const Op& op, const Workload& w) {
  if (turns_parts(op)) return torchtitan::complex_rotary_of_parts_compiled(op, w);
  if (op.shape.wide_angles) return composed_rotary_compiled(op, w);
  OpFacts f = rotary(op, w);
  f.forward_launches = f.backward_launches = w.element_bytes == 2 ? 2 : 1;
  return f;
}

// repeat_kv copies k and v to all heads before scaled_dot_product_attention: those copies are saved, the short k and v
// are not. Without grouping k and v themselves are saved.
OpFacts attention_repeated(const Op& op, const Workload& w) {
  const OpShape& s = op.shape;
  if (s.v_head_dim > 0) return torchtitan::flex_attention(op, w);
  OpFacts f = flash_attention(op, w);
  if (s.kv_heads == s.heads || s.packed) return f;
  const std::int64_t q = row_bytes(w, times(s.heads, s.head_dim)), kv = row_bytes(w, times(s.kv_heads, s.head_dim));
  f.saved_inputs = 0b001;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, 2 * q);
  f.forward_launches = 3;
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 4 * q);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 4 * (q - kv));
  return f;
}

// Before 2026 a matmul with a bias was made again.
bool keeps_2024(const Op& op, std::int64_t matmul) {
  return op.kind == OpKind::attention || keeps_scattered(op) ||
         (op.kind == OpKind::linear && !adds_bias(op) && matmul % 2 == 1);
}

// A router's product, where tokens and weights are cast.
template <OpRule otherwise>
OpFacts linear_of_router_too(const Op& op, const Workload& w) {
  return op.shape.in_fp32 && w.element_bytes == 2 ? linear_in_fp32(op, w) : otherwise(op, w);
}

bool of_deepseek(const Op& op) {
  const OpShape& s = op.shape;
  return (op.kind == OpKind::rotary && turns_parts(op)) || (op.kind == OpKind::rms_norm && s.in > s.width) ||
         (op.kind == OpKind::attention && s.v_head_dim > 0) || (op.kind == OpKind::moe_route && s.groups > 1);
}

// Experts are chosen by a softmax, or by sigmoids; latent attention is DeepSeek's.
std::string_view lacks(const Op& op) {
  const OpShape& s = op.shape;
  const bool router = op.kind == OpKind::linear && s.in_fp32 && s.float8 == Float8Recipe::none;
  if (router || of_deepseek(op) || (op.kind == OpKind::moe_route && s.sigmoid)) return {};
  return float8::lacks(op);
}

// And, since April 2026, gpt-oss.
std::string_view lacks_2026(const Op& op) {
  const OpShape& s = op.shape;
  const bool of_gpt_oss = (op.kind == OpKind::attention && s.sinks && !s.by_head) ||
                          (op.kind == OpKind::expert_linear && !s.transposed && op.params.size() > 1) ||
                          (op.kind == OpKind::swiglu && s.clamped && s.float8 == Float8Recipe::none);
  return of_gpt_oss ? std::string_view() : lacks(op);
}

// Experts of one time: `own_form` builds the model, and the rules are what routes, finds rows and adds results up.
void with_experts(Implementation& i, decltype(Implementation::own_form) own_form, OpRule route, OpRule dispatch,
                  OpRule combine) {
  i.own_form = own_form;
  const auto set = [&](OpKind kind, OpRule rule) { i.rules[static_cast<std::size_t>(kind)] = rule; };
  set(OpKind::moe_route, route);
  set(OpKind::moe_dispatch, dispatch);
  set(OpKind::expert_linear, route ? grouped_expert_linear : nullptr);
  set(OpKind::moe_combine, combine);
}
ModelGraph sorting_experts(ModelGraph model) {
  return with_torchtitan_experts(std::move(model), {.fp32_routers = true});
}
ModelGraph sorted_experts(ModelGraph model) {
  return with_torchtitan_experts(std::move(model), {.sorted_outside = true});
}

// Before August 2025 experts were another program's; and from then to April 2026, compiled, `selective-op` kept all
// that each compiled part had made.
void without_experts(Implementation& i) { with_experts(i, nullptr, nullptr, nullptr, nullptr); }

// Host time. An eager PyTorch op costs the CPU 10-20 us (llm.c and PyTorch issue reports agree): 12 us, as backward
// runs from C++. Compiled code launches from generated wrappers: cudaLaunchKernel's 4-6 us. A hook: PyTorch issue
// 173680 measures about 1 ms for FSDP2's pre-forward of one module; the other hooks do less, so half of it is charged
// to each. Hooks stay eager when blocks are compiled. AdamW is `fused=True` (torchtitan's default since 2025): no
// temporaries beside the states.
Implementation newest(bool compiled) {
  Implementation i{.name = "torchtitan",
                   .compiled = compiled,
                   .rules = {embedding, position_embedding, fused_rms_norm, layer_norm, linear_of_router_too<linear>,
                             rotary, torchtitan::sdpa_or_latent, torchtitan::swiglu, gelu, add, cross_entropy, opaque},
                   .lacks = lacks_2026,
                   .backward_adds_in_place = false,
                   .loss_read_every_step = false,  // metrics are read every 10 steps
                   .keeps_selectively = keeps_every_second_matmul,
                   .keeps_unneeded_results = true,
                   .recompute_stops_early = false,
                   .frames_hold_inputs = true,
                   .optimizer_temp_bytes_per_element = 0,
                   .persistent_products = false,
                   .memory = MemorySource::caching_expandable,  // run_train.sh sets it
                   .host_seconds_per_launch = 12e-6,
                   .host_seconds_per_unit_hook = 5e-4};
  constexpr auto kRedistribute = static_cast<std::size_t>(OpKind::redistribute);
  i.rules[kRedistribute] = redistribute;
  with_experts(i, sorting_experts, torchtitan::moe_route, torchtitan::moe_dispatch, torchtitan::moe_combine);
  i.rules[static_cast<std::size_t>(OpKind::expert_linear)] = torchtitan::expert_linear;
  if (!compiled) return i;
  i.rules = compiled_rules(rotary_compiled, torchtitan::sdpa_or_latent_compiled);
  i.rules[kRedistribute] = redistribute;
  i.rules[static_cast<std::size_t>(OpKind::linear)] = linear_of_router_too<linear_compiled>;
  with_experts(i, sorting_experts, torchtitan::moe_route_compiled, torchtitan::moe_dispatch_compiled,
               torchtitan::moe_combine_compiled);
  i.rules[static_cast<std::size_t>(OpKind::expert_linear)] = torchtitan::expert_linear_compiled;
  i.rules[static_cast<std::size_t>(OpKind::swiglu)] = torchtitan::swiglu_compiled;
  i.keeps_unneeded_results = false;  // one graph: a value that nothing reads is not an output
  i.recompute_stops_early = true;
  i.frames_hold_inputs = false;
  i.host_seconds_per_launch = 6e-6;
  i.host_seconds_per_part = 12e-6;
  return i;
}

// Since 9 June 2026 (pull request 3571) attention is FlexAttention, in all models. Since 24 June 2026 (pull request
// 3714) q, k and v are made by one product, the first of a block, which `selective-op` keeps: k, too, which it made
// again as the second of them. Here it is still made again, and its bytes are kept as well. Its loss with the head in
// chunks is the plan's (LoopPlan::chunk_head).
//
// Of experts it keeps what topk returns, values in fp32 and indices (since 26 May 2026, pull request 3146).
std::int64_t kept_keys_and_choices(const Op& op, const Workload& w, const ModelGraph& model, std::int64_t matmul) {
  if (op.kind == OpKind::moe_route) return times(w.tokens(), times(op.shape.experts.top_k, 4 + 8));
  if (op.kind != OpKind::linear || matmul != 2) return 0;
  const auto reads_as_key = [&](std::int32_t tensor) {
    return std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& other) {
      return other.kind == OpKind::attention && other.inputs.size() == 3 && other.inputs[1] == tensor;
    });
  };
  std::int32_t key = op.outputs[0];
  for (const Op& after : model.ops)
    if ((after.kind == OpKind::rotary || after.kind == OpKind::rms_norm) && after.inputs[0] == key)
      key = after.outputs[0];
  return reads_as_key(key) ? row_bytes(w, op.shape.out) : 0;
}
Implementation of_june_2026(bool compiled) {
  Implementation i = newest(compiled);
  i.name = "torchtitan-2026-06";
  i.rules[static_cast<std::size_t>(OpKind::attention)] =
      compiled ? torchtitan::flex_attention_compiled : torchtitan::flex_attention;
  i.keeps_beside = kept_keys_and_choices;
  return i;
}

// cuDNN's attention, whose result lists of what `selective-op` keeps did not name until pull request 2095 of 1 December
// 2025: it was made again.
bool keeps_2024_but_attention(const Op& op, std::int64_t matmul) {
  return op.kind != OpKind::attention && keeps_2024(op, matmul);
}
Implementation with_cudnn(Implementation i, std::string_view name) {
  i.name = name;
  i.sdpa = AttentionKernel::sdpa;
  i.keeps_selectively = keeps_2024_but_attention;
  return i;
}

// December 2025 and January 2026. k and v were copied to all heads (until pull request 2259), and products of PyTorch
// before 2.11 are taken for persistent ones.
Implementation of_december_2025(bool compiled) {
  Implementation i = newest(compiled);
  i.name = "torchtitan-2025-12";
  i.lacks = lacks;
  i.persistent_products = true;
  i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_repeated;
  i.keeps_selectively = keeps_2024;
  with_experts(i, sorted_experts, torchtitan::moe_route, torchtitan::indexed_moe_dispatch,
               torchtitan::batched_moe_combine);
  if (compiled) without_experts(i);
  return i;
}

// Until 21 November 2025 the experts were those of August. Until 8 December (pull request 2118) blocks with
// FlexAttention were checkpointed in parts, and experts were chosen in groups since the 13th (2111): DeepSeek's are not
// known before.
Implementation with_experts_of_august_2025(Implementation i) {
  i.lacks = [](const Op& op) { return of_deepseek(op) ? std::string_view("latent attention") : lacks(op); };
  if (!i.compiled)
    with_experts(i, sorted_experts, torchtitan::moe_route, torchtitan::gathered_moe_dispatch,
                 torchtitan::padded_moe_combine);
  return i;
}

// From 9 October 2025 on (pull request 1776) cuDNN was asked for first, on every GPU that has it.
Implementation of_october_2025(bool compiled) {
  return with_cudnn(with_experts_of_august_2025(of_december_2025(compiled)), "torchtitan-2025-10");
}

// September 2025: FlashAttention-2.
Implementation of_september_2025(bool compiled) {
  Implementation i = with_experts_of_august_2025(of_december_2025(compiled));
  i.name = "torchtitan-2025-09";
  i.sdpa = AttentionKernel::sdpa_before_2_11;
  return i;
}

// April to August 2025. Recomputation stopped early and nn.RMSNorm was not one operator.
Implementation of_2025(bool compiled) {
  Implementation i = of_september_2025(compiled);
  i.name = "torchtitan-2025";
  if (!compiled) i.rules[static_cast<std::size_t>(OpKind::rms_norm)] = composed_rms_norm;
  i.recompute_stops_early = true;
  return i;
}

// From Blackwell on cuDNN came first from 14 May 2025 on (pull request 1196).
Implementation of_2025_blackwell(bool compiled) { return with_cudnn(of_2025(compiled), "torchtitan-2025-blackwell"); }

// Before April 2025 RMSNorm was torchtitan's own, the loss was not compiled, and AdamW was PyTorch's default on a GPU:
// foreach, which holds sqrt(v) of all parameters.
Implementation of_2024(bool compiled) {
  Implementation i = of_2025(compiled);
  without_experts(i);
  i.name = "torchtitan-2024";
  if (!compiled) i.rules[static_cast<std::size_t>(OpKind::rms_norm)] = upcast_rms_norm;
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cross_entropy;
  step_by_foreach(i);
  return i;
}

// Until 6 February 2025 (pull request 820) `selective-op` kept what aten::abs returned, which matters to rowwise
// products in 8 bits alone. torchtitan had them as a draft (pull request 808) since 27 January, with torchao from
// before its pull request 1629 of 30 January, and from after.
Implementation with_absolutes(std::string_view name, decltype(Implementation::keeps_beside) kept) {
  Implementation i = of_2024(/*compiled=*/true);
  i.name = name;
  i.keeps_beside = kept;
  return i;
}

// July and August 2024: the norms of its Llama configurations were fused by compiling RMSNorm alone (pull request 442),
// until that stopped working and `rmsnorm` became the default again (535). The kernel saves its bf16 input and the root
// mean square of each row. The launch script set expandable segments from 22 October on (643).
Implementation of_july_2024(bool compiled) {
  Implementation i = of_2024(compiled);
  i.name = "torchtitan-2024-07";
  i.memory = MemorySource::caching;
  constexpr auto kNorm = static_cast<std::size_t>(OpKind::rms_norm);
  i.rules[kNorm] = compiled_rules(rotary_compiled, flash_attention)[kNorm];
  return i;
}

// In that summer PyTorch took cuDNN's attention on an H100 (PyTorch pull request 125343, reverted for the second time
// on 28 June; 138522 made it opt-in on 22 October).
Implementation of_july_2024_hopper(bool compiled) {
  return with_cudnn(of_july_2024(compiled), "torchtitan-2024-07-hopper");
}

// Before 12 June 2024 the training loop still held the fp32 logits while backward ran (pull request 391 deletes them
// first). They are kept here until the loss has been differentiated, where the peak is; really until the next forward
// has ended.
OpFacts cross_entropy_with_logits_held(const Op& op, const Workload& w) {
  OpFacts f = cross_entropy(op, w);
  if (w.element_bytes != 2) {
    f.saved_inputs |= 0b01;
    return f;
  }
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(row_elements(w, op.shape.vocab), 4));
  f.forward_scratch_bytes = 0;
  f.forward_inside = {};
  return f;
}
// May and June 2024: the norm was `rmsnorm` (pull request 297).
Implementation of_may_2024(bool compiled) {
  Implementation i = of_2024(compiled);
  i.name = "torchtitan-2024-05";
  i.memory = MemorySource::caching;
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cross_entropy_with_logits_held;
  return i;
}

// April 2024: norms were fused, by a Triton kernel (pull request 181) that saves what July's does.
Implementation of_april_2024(bool compiled) {
  Implementation i = of_july_2024(compiled);
  i.name = "torchtitan-2024-04";
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cross_entropy_with_logits_held;
  return i;
}

// Before 10 April 2024 TORCH_NCCL_AVOID_RECORD_STREAMS was not set (commit e62573d4c; the default from PyTorch 2.8 on):
// memory of collectives over tensor ranks came back only when the device had reached them, and the host is far ahead of
// it.
Implementation of_march_2024(bool compiled) {
  Implementation i = of_2024(compiled);
  i.name = "torchtitan-2024-03";
  i.memory = MemorySource::caching;
  i.tensor_collectives_recorded = true;
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = cross_entropy_with_logits_held;
  return i;
}

}  // namespace

std::span<const Implementation> torchtitan_implementations() {
  static const std::vector<Implementation> all = [] {
    std::vector<Implementation> found;
    for (const auto& at_that_time :
         {newest, of_june_2026, of_december_2025, of_october_2025, of_september_2025, of_2025, of_2025_blackwell,
          of_2024, of_july_2024, of_july_2024_hopper, of_may_2024, of_april_2024, of_march_2024})
      for (const bool compiled : {false, true}) found.push_back(at_that_time(compiled));
    return found;
  }();
  return all;
}

const Implementation& torchtitan_with_absolutes(bool of_all_weights) {
  static const Implementation all = with_absolutes("torchtitan-2025-01", float8::kept_absolutes_of_all),
                              some = with_absolutes("torchtitan-2025-02", float8::kept_absolutes);
  return of_all_weights ? all : some;
}

const Implementation& torchtitan_implementation(bool compiled) {
  return torchtitan_implementations()[compiled ? 1 : 0];
}

}  // namespace fsdp
