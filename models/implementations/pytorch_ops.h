// Rules of PyTorch's own operators, for the implementations that call them.
#pragma once

#include "models/implementation.h"
#include "models/units.h"

namespace fsdp::pytorch {

[[nodiscard]] inline std::int64_t times(std::int64_t a, std::int64_t b) { return checked_mul(a, b, kOpSize); }
[[nodiscard]] inline std::int64_t plus(std::int64_t a, std::int64_t b) { return checked_add(a, b, kOpSize); }
[[nodiscard]] inline std::int64_t row_elements(const Workload& w, std::int64_t width) {
  return times(w.tokens(), width);
}
[[nodiscard]] inline std::int64_t row_bytes(const Workload& w, std::int64_t width) {
  return times(row_elements(w, width), w.element_bytes);
}
// Of an elementwise op: rows of its width, one per token, or per slot of experts.
[[nodiscard]] inline std::int64_t width_bytes(const Op& op, const Workload& w) {
  return times(times(rows(op.shape.experts, w), op.shape.width), w.element_bytes);
}
[[nodiscard]] inline std::int64_t head_bytes(const Workload& w, const OpShape& s, std::int64_t heads) {
  return row_bytes(w, times(heads, s.head_dim));
}

// PyTorch's own choice of AdamW on a GPU, foreach: it holds sqrt(v) of all parameters, and moves more than one fused
// pass of 28 bytes: decay 2, moments 3 + 2 + 3, root, division and sum 2 each, update 4 accesses of 4 bytes.
inline void step_by_foreach(Implementation& i) {
  i.optimizer_temp_bytes_per_element = 4;
  i.optimizer_temps_at_once = true;
  i.optimizer_traffic = 80.0 / 28;
}

// Bytes that aten::log_softmax over the vocabulary moves in elements of `element_bytes`, and that its backward moves.
[[nodiscard]] std::int64_t log_softmax_bytes(const Op&, const Workload&, std::int64_t element_bytes);
[[nodiscard]] std::int64_t log_softmax_backward_bytes(const Op&, const Workload&, std::int64_t element_bytes);

OpFacts embedding(const Op&, const Workload&);
OpFacts position_embedding(const Op&, const Workload&);
OpFacts fused_rms_norm(const Op&, const Workload&);
OpFacts fused_rms_norm_compiled(const Op&, const Workload&);
OpFacts upcast_rms_norm(const Op&, const Workload&);    // (x32 * rsqrt(mean(x32^2) + eps)).type(x) * weight
OpFacts composed_rms_norm(const Op&, const Workload&);  // nn.RMSNorm before it was one operator
OpFacts layer_norm(const Op&, const Workload&);
OpFacts layer_norm_compiled(const Op&, const Workload&);
OpFacts linear(const Op&, const Workload&);
OpFacts linear_compiled(const Op&, const Workload&);
OpFacts composed_rotary(const Op&, const Workload&);  // x cos + rotate_half(x) sin
OpFacts composed_rotary_compiled(const Op&, const Workload&);
OpFacts sdpa_attention(const Op&, const Workload&);         // without a mask (sdpa.cpp), by the one of these three:
OpFacts flash_attention(const Op&, const Workload&);        // ... of its fused kernel
OpFacts attention_of_packed_v(const Op&, const Workload&);  // ... the same, of q and k that were turned apart from v
OpFacts with_copied_result(OpFacts, const Op&, const Workload&);  // of a kernel whose result stands head by head
OpFacts masked_attention(const Op&, const Workload&);             // with a mask that is written out
OpFacts swiglu(const Op&, const Workload&);
OpFacts swiglu_compiled(const Op&, const Workload&);
OpFacts gelu(const Op&, const Workload&);
OpFacts add(const Op&, const Workload&);
OpFacts add_compiled(const Op&, const Workload&);
// Throws InputError for experts that would drop tokens, which no mixture of PyTorch's does.
void require_all_tokens(const Op&, std::string_view implementation);
OpFacts cross_entropy(const Op&, const Workload&);
OpFacts cross_entropy_compiled(const Op&, const Workload&);
OpFacts opaque(const Op&, const Workload&);
OpFacts cast(const Op&, const Workload&);
OpFacts grouped_moe_route(const Op&, const Workload&);  // transformers' grouped_mm experts (hf/experts.cpp)
OpFacts grouped_moe_dispatch(const Op&, const Workload&);
OpFacts grouped_expert_linear(const Op&, const Workload&);
OpFacts grouped_moe_combine(const Op&, const Workload&);
OpFacts wide_rms_norm(const Op&, const Workload&);  // what few families have (hf/variants.cpp)
OpFacts geglu(const Op&, const Workload&);
OpFacts scale(const Op&, const Workload&);
OpFacts soft_cap(const Op&, const Workload&);
OpFacts gelu_fast(const Op&, const Workload&);
OpFacts wide_rotary(const Op&, const Workload&);
OpFacts packed_rotary(const Op&, const Workload&);
OpFacts rotary_of_parts(const Op&, const Workload&);
OpFacts latent_rotary(const Op&, const Workload&);
OpFacts complex_latent_rotary(const Op&, const Workload&);
OpFacts latent_attention(const Op&, const Workload&);
OpFacts linear_in_fp32(const Op&, const Workload&);
OpFacts halved_rotary(const Op&, const Workload&);
OpFacts clamped_swiglu(const Op&, const Workload&);
OpFacts sigmoid_moe_route(const Op&, const Workload&);  // hf/experts.cpp
OpFacts wide_moe_route(const Op&, const Workload&);
OpFacts moe_route_of_chosen(const Op&, const Workload&);
OpFacts redistribute(const Op&, const Workload&);  // DTensor's: lowering makes its copies and collectives

// Linear layers whose product adds the bias, aten::addmm. Those in 8 bits add it afterwards.
[[nodiscard]] inline bool adds_bias(const Op& op) {
  return op.params.size() > 1 && op.shape.float8 == Float8Recipe::none;
}

// What torchtitan's policy of selective activation checkpointing (_save_list) keeps: attention, matmuls with a bias
// (aten::addmm), and those without but every second one (q, v, gate and down of a Llama block stay; k, o and up are
// made again). matmul: as Implementation::keeps_selectively has it.
[[nodiscard]] bool keeps_every_second_matmul(const Op&, std::int64_t matmul);
// Results of reduce-scatters are on the same list.
[[nodiscard]] bool keeps_scattered(const Op&);

// Rules of a model of these operators compiled by Inductor; rotary positions and attention are the stack's.
[[nodiscard]] std::array<OpRule, kOpKinds> compiled_rules(OpRule rotary, OpRule attention);

}  // namespace fsdp::pytorch
