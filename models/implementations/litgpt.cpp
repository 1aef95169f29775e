// LitGPT (litgpt/model.py) in bf16 as its own scripts and lightning-thunder's benchmark train it, under PyTorch before
// 2.11: Llama's operators in another order. One product makes q, k and v, which are cut apart head by head; grouped
// keys and values are copied to all heads before positions turn them; the flash kernel's result stands head by head,
// too, and is copied. Inductor changes nothing of that (the partitioner of PyTorch 2.4 keeps the same). Recorded:
// tests/torch/early/record_litgpt.py.
//
// Not modelled: what its backward has of q, k and v while it joins their gradients again.
#include <algorithm>

#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

// Beside the log-sum-exp and the result as the kernel makes it: k and v of all heads; where no heads are grouped v is a
// view of what the product made, all of which stays for it.
OpFacts attention(const Op& op, const Workload& w) {
  Op of_all = op;
  of_all.shape.kv_heads = op.shape.heads;
  OpFacts f = with_copied_result(flash_attention(of_all, w), op, w);
  const bool grouped = op.shape.kv_heads != op.shape.heads;
  const std::int64_t q = head_bytes(w, op.shape, op.shape.heads), kv = head_bytes(w, op.shape, op.shape.kv_heads);
  f.saved_inputs = grouped ? 0b1 : 0b11;
  f.saved_extra_bytes = plus(f.saved_extra_bytes, times(q, grouped ? 2 : 3));
  f.backward_scratch_bytes = plus(f.backward_scratch_bytes, grouped ? 2 * (q - kv) : 0);
  if (!grouped) return f;
  f.forward_launches = static_cast<std::int16_t>(f.forward_launches + 2);
  f.backward_launches = static_cast<std::int16_t>(f.backward_launches + 2);
  f.forward_traffic_bytes = plus(f.forward_traffic_bytes, 4 * q);
  f.backward_traffic_bytes = plus(f.backward_traffic_bytes, 4 * q);
  return f;
}

// Fabric casts the logits as they leave the model (HalfPrecision.convert_output), and nothing holds the others.
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

const Implementation& litgpt_implementation(LitGptLoop loop, bool compiled) {
  const auto make = [](LitGptLoop of, bool by_inductor, std::string_view name) {
    Implementation i = hf_implementation(by_inductor);
    i.name = name;
    i.rules[static_cast<std::size_t>(OpKind::attention)] = attention;
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

}  // namespace fsdp
