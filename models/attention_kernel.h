// The library that computes attention. Speeds differ by a factor of three, so implementations name theirs
// (OpFacts::attention) and GPUs state how fast each one is (GpuSpec::attention).
#pragma once

#include <cstdint>
#include <string_view>

namespace fsdp {

enum class AttentionKernel : std::uint8_t {
  flash1,  // FlashAttention 1
  flash2,  // FlashAttention-2
  cudnn,   // cuDNN's fused attention
  flash3,  // FlashAttention-3 (Hopper)
  // PyTorch's scaled_dot_product_attention: cuDNN on Hopper and on data center Blackwell, else FlashAttention-2. Before
  // PyTorch 2.11, whose builds were the first with a cuDNN that is new enough, it was FlashAttention-2 on Hopper, too
  // (sdp_utils.cpp, check_prefer_cudnn_attention).
  sdpa,
  sdpa_before_2_11,
  math,    // scores written out: matmuls and a softmax
  masked,  // PyTorch's memory-efficient kernel with a mask as a bias, which skips nothing that is masked
  triton,  // the kernel in Triton modelled on FlashAttention 1, as fast; MPT's runs of 2023
  flex,    // PyTorch's FlexAttention, compiled to Triton
};
inline constexpr int kAttentionKernels = static_cast<int>(AttentionKernel::flex) + 1;
// Those that a GPU can state a ceiling of: fused kernels, by their own names.
[[nodiscard]] constexpr bool has_ceiling(AttentionKernel k) {
  return k <= AttentionKernel::flash3 || k == AttentionKernel::flex;
}
[[nodiscard]] std::string_view name(AttentionKernel);  // "flash1"; the keys of "attention" in models/gpus/*.json

// Fractions of a GPU's dense 16-bit peak that a fused kernel reaches on long sequences with heads of 128.
struct AttentionCeiling {
  double forward = 0, backward = 0;
  friend bool operator==(const AttentionCeiling&, const AttentionCeiling&) = default;
};

}  // namespace fsdp
