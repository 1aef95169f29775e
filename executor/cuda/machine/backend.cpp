#include <cuda_runtime_api.h>

#include "executor/cuda_backend.h"
#include "models/error.h"

namespace fsdp {

std::unique_ptr<Backend> make_cuda_backend(MeshShape, const CudaOptions&) { throw MachineError("the cuda backend: " + why_no_cuda()); }

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  return error != cudaSuccess ? cudaGetErrorString(error) : count == 0 ? "no GPU" : "not yet";
}

}  // namespace fsdp
