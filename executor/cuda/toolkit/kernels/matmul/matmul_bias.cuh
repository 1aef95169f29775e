#pragma once

#include <cstdint>

#include "executor/cuda/toolkit/kernels/primitives.cuh"

namespace fsdp::cuda {

// Storage alone: T is any type of the element's size.
template <class T>
__global__ void bias_rows_kernel(const T* bias, std::int64_t rows, std::int64_t columns, T* to) {
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows * columns;
       i += threads)
    to[i] = bias[i % columns];
}

}  // namespace fsdp::cuda
