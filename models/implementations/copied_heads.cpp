// LitGPT and torchtune, Llama's operators in bf16 in another order: keys and values that heads share are copied to all
// of them, as flash kernels took no others before PyTorch 2.5.
//
// LitGPT (litgpt/model.py) as its own scripts and lightning-thunder's benchmark train it: one product makes q, k and v,
// which are cut apart head by head; copies of keys are turned, not keys; the flash kernel's result stands head by head,
// too, and is copied. Inductor changes nothing of that (the partitioner of PyTorch 2.4 keeps the same). Recorded:
// tests/torch/early/record_litgpt.py.
//
// torchtune (torchtune/modules/attention.py) copies what was turned, by angles in fp32 that are looked up for each
// token. Recorded: tests/torch/early/record_torchtune.py. Its recipes compile layer by layer, and dropped what
// torch.compile made of a plain loss (training.compile_loss returns it); one in chunks is compiled in place.
//
// Not modelled: what LitGPT's backward has of q, k and v while it joins their gradients again.
#include <algorithm>

#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

// Of copies of k and v for all heads, where heads share them.
OpFacts attention_of_copies(const Op& op, const Workload& w) {
  Op of_all = op;
  of_all.shape.kv_heads = op.shape.heads;
  OpFacts f = flash_attention(of_all, w);
  if (op.shape.kv_heads == op.shape.heads) return f;
  const std::int64_t q = head_bytes(w, op.shape, op.shape.heads), kv = head_bytes(w, op.shape, op.shape.kv_heads);
  f.saved_inputs = 0b1;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, 2 * q);
  f.backward_scratch_bytes = plus(f.backward_scratch_bytes, 2 * (q - kv));
  f.forward_launches = static_cast<std::int16_t>(f.forward_launches + 2);
  f.backward_launches = static_cast<std::int16_t>(f.backward_launches + 2);
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 4 * q);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 4 * q);
  return f;
}

// The result as the kernel makes it, beside its copy; where no heads share keys v is a view of what the product made,
// all of which stays for it.
OpFacts attention_of_litgpt(const Op& op, const Workload& w) {
  OpFacts f = with_copied_result(attention_of_copies(op, w), op, w);
  if (op.shape.kv_heads != op.shape.heads) return f;
  f.saved_inputs = 0b11;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(head_bytes(w, op.shape, op.shape.heads), 3));
  return f;
}

// x in fp32, turned in pairs: two products and their sum for each half, which are joined and cast. What was looked up
// is kept: a cosine and a sine for each pair of a head and token.
OpFacts rotary_of_looked_up(const Op& op, const Workload& w) {
  const std::int64_t n = row_elements(w, times(op.shape.heads, op.shape.head_dim)), x = times(n, w.element_bytes),
                     angles = times(row_elements(w, op.shape.head_dim), 4);
  return {.saved_extra_bytes = angles,
          .forward_scratch_bytes = times(n, 12) - x,
          .backward_scratch_bytes = times(n, 12) - x,
          .forward_launches = 11,
          .backward_launches = 15,
          .forward_traffic_bytes = plus(times(n, 40), angles),
          .backward_traffic_bytes = plus(times(n, 60), angles)};
}

// Fabric (HalfPrecision.convert_output) and torchtune's model cast the logits at its end, and nothing holds the others.
OpFacts cross_entropy_of_cast(const Op& op, const Workload& w) {
  OpFacts f = cross_entropy(op, w);
  if (w.element_bytes != 2 || w.loss_chunks > 1) return f;
  f.forward_inside = {{times(row_elements(w, op.shape.vocab), 4)}, "+0 -i0 +e -0"};
  return f;
}

// F.cross_entropy of logits as they are.
OpFacts cross_entropy_in_16_bits(const Op& op, const Workload& w) {
  if (w.element_bytes != 2 || w.loss_chunks > 1 || op.shape.vocab_parts > 1) return cross_entropy(op, w);
  const std::int64_t n = row_bytes(w, op.shape.vocab);
  return {.saved_inputs = 0b10,
          .saved_extra_bytes = n,
          .backward_scratch_bytes = n,
          .forward_launches = 2,
          .backward_launches = 3,
          .forward_traffic_bytes = log_softmax_bytes(op, w, w.element_bytes),
          .backward_traffic_bytes = plus(n, log_softmax_backward_bytes(op, w, w.element_bytes))};
}

// x * rsqrt(mean(x * x) + eps) * weight, all in x's type. aten::mean saved what it averages until PyTorch 2.2.
OpFacts rms_norm_in_16_bits(const Op& op, const Workload& w) {
  const std::int64_t x = row_bytes(w, times(op.shape.groups, op.shape.width)),
                     r = times(times(w.tokens(), op.shape.groups), w.element_bytes);
  return {.saved_inputs = 0b1,
          .saved_extra_bytes = plus(r, 2 * x),
          .saved_for_weight_bytes = x,
          .forward_scratch_bytes = 2 * r,
          .backward_scratch_bytes = 3 * x,
          .forward_launches = 6,
          .backward_launches = 13,
          .forward_traffic_bytes = times(x, 8),
          .backward_traffic_bytes = times(x, 22)};
}

}  // namespace

Implementation with_loss(Implementation i, LoopLoss loss) {
  i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] = loss == LoopLoss::compiled     ? cross_entropy_compiled
                                                             : loss == LoopLoss::in_16_bits ? cross_entropy_in_16_bits
                                                                                            : cross_entropy;
  return i;
}

const Implementation& litgpt_implementation(LitGptLoop loop, bool compiled) {
  const auto make = [](LitGptLoop of, bool by_inductor, std::string_view name) {
    Implementation i = hf_implementation(by_inductor);
    i.name = name;
    i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_of_litgpt;
    const bool fabric = of != LitGptLoop::benchmark;
    i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] =
        fabric ? cross_entropy_of_cast : cross_entropy_in_16_bits;
    const OpRule norm =
        of == LitGptLoop::fabric_2023 ? rms_norm_in_16_bits : upcast_rms_norm;  // which holds no product
    if (!by_inductor) i.rules[static_cast<std::size_t>(OpKind::rms_norm)] = norm;
    i.loop_holds = fabric ? LoopHolds::nothing : LoopHolds::logits;
    i.loss_in_model = false;
    i.ddp_copies_gradients = fabric;
    i.keeps_selectively = nullptr;
    i.peft_casts = false;
    i.sdpa = AttentionKernel::sdpa_before_2_11;
    i.persistent_products = true;
    return i;
  };
  static const Implementation fabric = make(LitGptLoop::fabric, false, "litgpt"),
                              then = make(LitGptLoop::fabric_2023, false, "litgpt-2023"),
                              benchmark = make(LitGptLoop::benchmark, false, "litgpt-benchmark"),
                              inductor = make(LitGptLoop::benchmark, true, "litgpt-benchmark");
  if (loop == LitGptLoop::benchmark) return compiled ? inductor : benchmark;
  return loop == LitGptLoop::fabric ? fabric : then;
}

const Implementation& torchtune_implementation(bool compiled, bool loss) {
  const auto make = [](bool by_inductor, bool compiled_loss) {
    Implementation i = hf_implementation(by_inductor);
    i.name = by_inductor && !compiled_loss ? "torchtune-plain" : "torchtune";
    i.rules[static_cast<std::size_t>(OpKind::attention)] = attention_of_copies;
    i.rules[static_cast<std::size_t>(OpKind::cross_entropy)] =
        compiled_loss ? cross_entropy_compiled : cross_entropy_of_cast;
    if (!by_inductor) i.rules[static_cast<std::size_t>(OpKind::rms_norm)] = upcast_rms_norm;
    if (!by_inductor) i.rules[static_cast<std::size_t>(OpKind::rotary)] = rotary_of_looked_up;
    i.loss_in_model = false;
    i.keeps_selectively = nullptr;
    i.peft_casts = false;
    i.sdpa = AttentionKernel::sdpa_before_2_11;
    i.persistent_products = true;
    return i;
  };
  static const Implementation eager = make(false, false), inductor = make(true, true), plain = make(true, false);
  if (!compiled) return eager;
  return loss ? inductor : plain;
}

}  // namespace fsdp
