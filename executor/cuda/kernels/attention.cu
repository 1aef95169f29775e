#include "executor/cuda/kernels/attention.h"

#include <cuda_runtime_api.h>

#include <string>

#include "executor/cuda/kernels/attention_launch.cuh"

namespace fsdp::cuda {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) throw MachineError(std::string("attention on the GPU: ") + cudaGetErrorString(status));
}

struct Launch {
  cudaStream_t stream;
  template <class Argument>
  void operator()(void (*kernel)(Argument), dim3 grid, int threads, int shared_bytes, const Argument& argument) const {
    if (shared_bytes > 48 << 10)  // beyond that a kernel must be told, on each device
      check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
    kernel<<<grid, static_cast<unsigned>(threads), static_cast<std::size_t>(shared_bytes), stream>>>(argument);
    check(cudaGetLastError());
  }
};

}  // namespace

void launch_attention_forward(DType type, const AttentionForward& a, CUstream_st* stream) {
  forward_attention(type, a, Launch{stream});
}
void launch_attention_backward(DType type, const AttentionBackward& a, CUstream_st* stream) {
  backward_attention(type, a, Launch{stream});
}

}  // namespace fsdp::cuda
