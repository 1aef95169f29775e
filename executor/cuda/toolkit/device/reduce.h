// Reductions and copies between virtual ranks, on the GPU.
#pragma once

#include <cstdint>

#include "executor/backend.h"
#include "executor/cuda/rank_reduction.h"

struct CUstream_st;

namespace fsdp::cuda {

[[nodiscard]] Combine combine_of(ReductionKind);

// output[i] = reduction over inputs.of[0 .. n)[i], i < count: the bits of host::reduce_in_order. output may be one of
// the inputs. The driver's error is left for cudaPeekAtLastError; MachineError for types without arithmetic.
void enqueue_reduction(DType, Reduction, const Inputs&, int n, std::int64_t count, std::byte* output, CUstream_st*);

// A copy by a kernel. cudaMemcpyAsync between two buffers in host memory, pinned or not, returns when the copy is done,
// and so waits for all that stands before it on the stream.
void enqueue_copy(std::byte* to, const std::byte* from, std::int64_t bytes, CUstream_st*);

// Loads all kernels of this file. A kernel that is loaded at its first launch may wait for the whole GPU, which may
// wait for that launch.
void preload_reductions(CUstream_st*);

}  // namespace fsdp::cuda
