// A Launch (launch.cuh) that puts kernels on a CUDA stream. For .cu files. Where those are compiled for the processor
// instead (tests), the test has a StreamLaunch of its own, defines FSDP_CUDA_STREAM_LAUNCH and leaves nothing here.
#pragma once

#ifndef FSDP_CUDA_STREAM_LAUNCH
#define FSDP_CUDA_STREAM_LAUNCH

#include <cuda_runtime_api.h>

#include <string>

#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/cuda/toolkit/kernels/launches.h"
#include "models/input/error.h"

namespace fsdp::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw MachineError(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

struct StreamLaunch {
  cudaStream_t stream;
  template <class... P, class... A>
  void operator()(Extent3 grid, Extent3 block, std::size_t shared_bytes, void (*kernel)(P...), A... arguments) const {
    if (shared_bytes > std::size_t{48} << 10)  // beyond that a kernel must be told, on each device
      check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared_bytes)),
            "a kernel was refused its shared memory");
    kernel<<<dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), shared_bytes, stream>>>(arguments...);
    check(cudaGetLastError(), "a kernel was not started");
  }
  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (bytes > 0)
      check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream),
            "a copy was not started");
  }
  void zero(void* to, std::int64_t bytes) const {
    if (bytes > 0) check(cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), stream), "memory was not zeroed");
  }
};

}  // namespace fsdp::cuda

#endif
