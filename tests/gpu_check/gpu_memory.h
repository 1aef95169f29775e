// A GPU for tests of kernels, where there is one.
#pragma once

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "executor/backend.h"

namespace fsdp::testing {

inline void require(cudaError_t status) { REQUIRE_MESSAGE(status == cudaSuccess, cudaGetErrorString(status)); }

// Says so and is false where no GPU is; ctest reports the program as skipped (tests/CMakeLists.txt).
inline bool gpu_is_here() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return true;
  MESSAGE("skipped: no GPU here (" << std::string(status == cudaSuccess ? "no device" : cudaGetErrorString(status))
                                   << ")");
  return false;
}

// Device memory that holds copies of the host's, until the end of the case.
class GpuMemory {
 public:
  GpuMemory() = default;
  GpuMemory(const GpuMemory&) = delete;
  ~GpuMemory() {
    for (void* p : memory_) cudaFree(p);
  }
  BufferView to_device(BufferView v) {
    if (v.bytes == 0) return {};
    require(cudaMalloc(&memory_.emplace_back(), static_cast<std::size_t>(v.bytes)));
    require(cudaMemcpy(memory_.back(), v.data, static_cast<std::size_t>(v.bytes), cudaMemcpyHostToDevice));
    return {static_cast<std::byte*>(memory_.back()), v.bytes};
  }
  void to_host(BufferView from, BufferView to) {
    require(cudaDeviceSynchronize());
    if (to.bytes > 0)
      require(cudaMemcpy(to.data, from.data, static_cast<std::size_t>(to.bytes), cudaMemcpyDeviceToHost));
  }

 private:
  std::vector<void*> memory_;
};

}  // namespace fsdp::testing
