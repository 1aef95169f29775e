// Kernels on a CUDA stream that StreamKernels is made of, for plain C++: each puts its work on the stream and returns.
// Pointers are the device's. Throws MachineError for extents that do not fit and for launches that the driver refuses.
// Matmuls and attention have headers of their own.
#pragma once

#include "executor/kernels/call.h"

struct CUstream_st;

namespace fsdp::cuda {

using StreamHandle = CUstream_st*;

// Ops by theme, forward or backward. Scratch and what is kept: models/implementations/native_cuda.cpp.
enum class Theme { elementwise, norms, embeddings, rotary, cross_entropy, moe, attention, linear, expert_linear, none };
[[nodiscard]] constexpr Theme theme_of(OpKind kind) {
  switch (kind) {
    case OpKind::swiglu:
    case OpKind::gelu:
    case OpKind::scale:
    case OpKind::add: return Theme::elementwise;
    case OpKind::rms_norm:
    case OpKind::layer_norm: return Theme::norms;
    case OpKind::embedding:
    case OpKind::position_embedding: return Theme::embeddings;
    case OpKind::rotary: return Theme::rotary;
    case OpKind::cross_entropy: return Theme::cross_entropy;
    case OpKind::moe_route:
    case OpKind::moe_dispatch:
    case OpKind::moe_combine: return Theme::moe;
    case OpKind::attention: return Theme::attention;
    case OpKind::linear: return Theme::linear;
    case OpKind::expert_linear: return Theme::expert_linear;
    case OpKind::opaque:
    case OpKind::geglu:
    case OpKind::soft_cap:
    case OpKind::redistribute:
    case OpKind::cast: break;
  }
  return Theme::none;
}
void run_elementwise(const Call&, DType, bool backward, StreamHandle);
void run_norms(const Call&, DType, bool backward, StreamHandle);
void run_embeddings(const Call&, DType, bool backward, StreamHandle);
void run_rotary(const Call&, DType, bool backward, StreamHandle);
void run_cross_entropy(const Call&, DType, bool backward, StreamHandle);
void run_moe(const Call&, DType, bool backward, StreamHandle);
// Action::loss_statistic, with its arguments.
void run_loss_statistic(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight,
                        StreamHandle);

// to[c] (+)= sum over rows of from[row, c]. `scratch`: room for partial sums of at least one row in the accumulate
// type.
void run_bias_gradient(DType, const void* from, std::int64_t rows, std::int64_t columns, void* to, bool accumulate,
                       BufferView scratch, StreamHandle);

// Device memory that partial norms take.
[[nodiscard]] std::int64_t norm_scratch_bytes();
// Synthetic tokens of `work.sequences` sequences from `first` on.
void run_synthetic_tokens(std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
                          BufferView ids, BufferView targets, StreamHandle);

}  // namespace fsdp::cuda
