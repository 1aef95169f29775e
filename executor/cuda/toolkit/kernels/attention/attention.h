// Softmax attention on the GPU, forward and backward, as executor/kernels/ops/attention.cpp defines it (causal, window,
// alibi, grouped queries). No square of the sequence length is held, nothing is added atomically: results do not depend
// on timing.
//
//   16-bit storage, head_dim 64 or 128, rows aligned to 16 bytes: tensor cores, attention_forward.cuh and
//     attention_backward.cuh.
//   Everything else up to head_dim 256 (fp32 and fp64 in their own arithmetic): attention_simple.cuh, plain and slower.
//
// Rounding where the host has none: on tensor cores the probabilities and the gradients of scores are rounded to the
// storage type before they are multiplied (sums stay in fp32): in fp16, gradients of scores beyond 65504 are infinite.
#pragma once

#include <cstdint>

#include "models/dtype.h"

struct CUstream_st;

namespace fsdp::cuda {

inline constexpr std::int32_t kMostAttentionDim = 256;

struct AttentionSizes {
  std::int32_t sequences = 0, length = 0;         // tokens of one sequence
  std::int32_t heads = 0, kv_heads = 0, dim = 0;  // query head h reads key and value head h / (heads / kv_heads)
  std::int32_t window = 0;                        // 0: none; else query i sees keys j with i - j < window
  bool causal = true, alibi = false;
  std::int64_t q_row = 0, kv_row = 0;  // elements from token to token of q, of k and v, and of their gradients
  [[nodiscard]] constexpr std::int64_t out_row() const {
    return std::int64_t{heads} * dim;
  }  // of the output and its gradient
};

// Elements of the storage type, but for lse and sums: the arithmetic type (double for fp64, else float),
// [sequences][heads][length].
struct AttentionForward {
  AttentionSizes sizes;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  void* lse = nullptr;  // log-sum-exp of each row of scores; null: not kept
};
struct AttentionBackward {
  AttentionSizes sizes;
  const void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr, *grad_out = nullptr, *lse = nullptr;
  void* sums = nullptr;                                          // scratch: rowsum(grad_out * out)
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;  // null: not wanted
  bool add_q = false, add_k = false, add_v = false;              // added to what is there
};

// Elements of lse and of sums. Forward takes no scratch.
[[nodiscard]] constexpr std::int64_t attention_rows(const AttentionSizes& z) {
  return std::int64_t{z.sequences} * z.heads * z.length;
}

// Enqueue only. Throw MachineError for sizes that no kernel takes and for what the CUDA runtime refuses at launch.
void launch_attention_forward(DType, const AttentionForward&, CUstream_st*);
void launch_attention_backward(DType, const AttentionBackward&, CUstream_st*);

}  // namespace fsdp::cuda
