// NeMo Automodel as of 2026 on dense decoders of transformers: TransformerEngine's RMSNorm, rotary positions and
// (cuDNN's) attention, one kernel each and one more for the gradient of a norm's weight; products, the gated unit, the
// residuals and the loss are PyTorch's. Its own scripts prefetch one unit in forward and two in backward
// (`--forward-prefetch 1 --backward-prefetch 2`), and reduce gradients in bf16 or fp32 after every micro-batch or the
// last one: that is the plan's. AdamW is TransformerEngine's, fused.
//
// What kernels there are, and how many, is from the profile of one step of Llama-3.1-70B on 64 H100
// (tests/accuracy/kernel_breakdown.csv): 1286 of norms (a forward one, and two backward), 960 of rotary positions (q
// and k apart). Its products (CUDA 13's cuBLAS) took 6.43 s, for three fifths of which a collective ran beside them:
// had those needed a second round, as persistent kernels of 2024 did (PyTorch issue 143988), the others would have been
// faster than the GPU's peak. What they save is what their derivatives need: a norm its input and 1/rms, rotary
// positions nothing.
#include "models/implementations/pytorch_ops.h"

namespace fsdp {
namespace {

using namespace pytorch;

// Three tensors of activations in backward, the weight's gradient from partial sums of a few rows. Of the memory
// bandwidth as PyTorch's fused kernels: TransformerEngine's were not measured apart.
OpFacts norm(const Op& op, const Workload& w) {
  OpFacts f = fused_rms_norm(op, w);
  f.forward_rate = 1;
  f.backward_traffic_bytes = plus(3 * row_bytes(w, times(op.shape.groups, op.shape.width)), f.saved_extra_bytes);
  return f;
}

// One kernel for q or k, there and back.
OpFacts rotary(const Op& op, const Workload& w) { return composed_rotary_compiled(op, w); }

OpFacts attention(const Op& op, const Workload& w) {
  OpFacts f = flash_attention(op, w);
  f.attention = AttentionKernel::cudnn;
  return f;
}

}  // namespace

const Implementation& automodel_implementation() {
  static const Implementation eager = [] {
    Implementation i = hf_implementation(false);
    i.name = "automodel";
    i.rules[static_cast<std::size_t>(OpKind::rms_norm)] = norm;
    i.rules[static_cast<std::size_t>(OpKind::rotary)] = rotary;
    i.rules[static_cast<std::size_t>(OpKind::attention)] = attention;
    for (const OpKind experts :
         {OpKind::moe_route, OpKind::moe_dispatch, OpKind::expert_linear, OpKind::moe_combine})  // its own, not known
      i.rules[static_cast<std::size_t>(experts)] = nullptr;
    i.lacks = few_families;
    i.loss_read_every_step = false;
    return i;
  }();
  return eager;
}

}  // namespace fsdp
