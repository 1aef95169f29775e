// Which library computes attention. Speeds differ by a factor of three between them, so implementations name theirs
// (OpFacts::attention) and GPUs state how fast each is (GpuSpec::attention).
#pragma once

#include <cstdint>

namespace fsdp {

enum class AttentionKernel : std::uint8_t {
  flash1,  // FlashAttention 1 and the Triton kernel made after it, as MPT runs of 2022 and 2023 used
  flash2,  // FlashAttention-2
  cudnn,   // cuDNN's fused attention
  flash3,  // FlashAttention-3 (Hopper)
  sdpa,    // PyTorch's scaled_dot_product_attention: FlashAttention-2, from Blackwell on cuDNN
  math,    // scores written out: matrix products and a softmax
};
inline constexpr int kFusedAttentionKernels = 4;  // the first four, which have ceilings of their own

// Fractions of a GPU's dense 16-bit peak on long sequences with heads of 128; 0: not stated, see attention_ceiling
// (costs/attention.h).
struct AttentionCeiling {
  double forward = 0, backward = 0;
  friend bool operator==(const AttentionCeiling&, const AttentionCeiling&) = default;
};

}  // namespace fsdp
