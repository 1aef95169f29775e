#include "executor/cuda/kernels/product_bias.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "executor/cuda/errors.h"
#include "executor/cuda/kernels/product_bias.cuh"
#include "executor/kernels/element.h"

namespace fsdp::cuda {

void launch_bias_rows(DType type, const void* bias, std::int64_t rows, std::int64_t columns, void* to, CUstream_st* stream) {
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>((rows * columns + 255) / 256, 1, 4096));
  with_type(type, [&](auto element) {
    using T = decltype(element);
    bias_rows_kernel<T><<<blocks, 256, 0, stream>>>(static_cast<const T*>(bias), rows, columns, static_cast<T*>(to));
  });
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
    throw MachineError(refusal(-1, "rows of a bias", cudaGetErrorName(status), cudaGetErrorString(status)));
}

}  // namespace fsdp::cuda
