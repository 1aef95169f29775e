#include <cuda_runtime.h>

#include <algorithm>

#include "executor/cuda/toolkit/device/reduce.h"

namespace fsdp::cuda {
namespace {

template <class T>
__global__ void reduce(Combine combine, double factor, Inputs inputs, int n, std::int64_t count, T* output) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride)
    output[i] = reduce_element<T>(combine, factor, inputs, n, i);
}

__global__ void copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < bytes; i += stride) to[i] = from[i];
}

constexpr std::int64_t kThreads = 256, kMostBlocks = 4096;
unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((count + kThreads - 1) / kThreads, 1, kMostBlocks));
}

}  // namespace

Combine combine_of(ReductionKind kind) {
  switch (kind) {
    case ReductionKind::sum: return Combine::sum;
    case ReductionKind::average: return Combine::average;
    case ReductionKind::scaled_sum: return Combine::scaled_sum;
    case ReductionKind::maximum: return Combine::maximum;
  }
  return Combine::sum;
}

void enqueue_reduction(DType type, Reduction reduction, const Inputs& inputs, int n, std::int64_t count,
                       std::byte* output, CUstream_st* stream) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    reduce<T><<<blocks_for(count), static_cast<unsigned>(kThreads), 0, stream>>>(
        combine_of(reduction.kind), reduction.multiply, inputs, n, count, reinterpret_cast<T*>(output));
  });
}

void enqueue_copy(std::byte* to, const std::byte* from, std::int64_t bytes, CUstream_st* stream) {
  copy<<<blocks_for(bytes), static_cast<unsigned>(kThreads), 0, stream>>>(to, from, bytes);
}

void preload_reductions(CUstream_st* stream) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16})
    enqueue_reduction(type, Reduction::sum, Inputs{}, 0, 0, nullptr, stream);
  enqueue_copy(nullptr, nullptr, 0, stream);
}

}  // namespace fsdp::cuda
