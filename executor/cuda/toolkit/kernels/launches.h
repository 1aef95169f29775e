// Kernels on a CUDA stream, for plain C++: each puts its work on the stream and returns. Arguments as those of the
// host's kernels of the same name (executor/kernels/kernels.h); pointers are the device's. Throws MachineError for
// extents that do not fit and for launches that the driver refuses. Matmuls and attention have headers of their
// own.
#pragma once

#include "executor/data/synthetic.h"
#include "executor/kernels/call.h"
#include "executor/kernels/kernels.h"
#include "planner/layout.h"

struct CUstream_st;

namespace fsdp::cuda {

using StreamHandle = CUstream_st*;

// Ops by theme, forward or backward. Scratch and what is kept: models/implementations/native_cuda.cpp.
enum class Theme { elementwise, norms, embeddings, rotary, cross_entropy, moe, attention, linear, expert_linear, none };
[[nodiscard]] constexpr Theme theme_of(OpKind kind) {
  switch (kind) {
    case OpKind::swiglu:
    case OpKind::gelu:
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
    case OpKind::opaque: break;
  }
  return Theme::none;
}
void run_elementwise(const Call&, DType, bool backward, StreamHandle);
void run_norms(const Call&, DType, bool backward, StreamHandle);
void run_embeddings(const Call&, DType, bool backward, StreamHandle);
void run_rotary(const Call&, DType, bool backward, StreamHandle);
void run_cross_entropy(const Call&, DType, bool backward, StreamHandle);
void run_moe(const Call&, DType, bool backward, StreamHandle);

// to[c] (+)= sum over rows of from[row, c]. `scratch`: room for partial sums of at least one row in the accumulate
// type.
void run_bias_gradient(DType, const void* from, std::int64_t rows, std::int64_t columns, void* to, bool accumulate,
                       BufferView scratch, StreamHandle);

void run_convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements, bool accumulate,
                 StreamHandle);
void run_scale(DType, BufferView values, std::int64_t elements, double factor, StreamHandle);
void run_copy(std::byte* to, const std::byte* from, std::int64_t bytes, StreamHandle);  // between any memories
void run_zero(std::byte* to, std::int64_t bytes, StreamHandle);

void run_scatter_copy_in(const UnitLayout&, DType from, std::span<const BufferView> full, DType to, BufferView input,
                         StreamHandle);
void run_gather_copy_out(const UnitLayout&, DType, BufferView gathered, std::span<const BufferView> full, StreamHandle);
void run_gather_parts_copy_out(const UnitLayout&, std::int64_t n, DType, BufferView gathered,
                               std::span<const BufferView> full, StreamHandle);
// `shards` slabs of `outer` pieces each, to (`to_rows`) or from `outer` rows of `shards` pieces each.
void run_reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
                 bool to_rows, StreamHandle);

// Sum of powers (p = 2: squares; infinity: largest magnitude) of all values into one fp64 number. `scratch`:
// norm_scratch_bytes() on the device.
[[nodiscard]] std::int64_t norm_scratch_bytes();
void run_local_norm(DType, std::span<const BufferView> values, double p, BufferView norm, std::byte* scratch,
                    StreamHandle);
void run_clip(DType, std::span<const BufferView> values, double p, double limit, BufferView norm, StreamHandle);
void run_adamw(const UnitLayout&, std::int64_t shard_rank, const Optimizer&, std::int64_t step, DType master,
               BufferView gradient, BufferView shard, BufferView state1, BufferView state2, GradientPlaces,
               StreamHandle);
void run_sgd(const UnitLayout&, std::int64_t shard_rank, const Optimizer&, DType master, BufferView gradient,
             BufferView shard, GradientPlaces, StreamHandle);

// Synthetic tokens of `work.sequences` sequences from `first` on; initial weights of elements [begin, begin +
// elements).
void run_synthetic_tokens(std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
                          BufferView ids, BufferView targets, StreamHandle);
void run_initial_values(const InitialValues&, std::int64_t begin, std::int64_t elements, DType, std::byte* to,
                        StreamHandle);

}  // namespace fsdp::cuda
