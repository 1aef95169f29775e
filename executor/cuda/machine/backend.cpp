#include <cuda_runtime_api.h>

#include "executor/cuda/errors.h"
#include "executor/cuda_backend.h"
#include "models/error.h"

namespace fsdp {

std::unique_ptr<Backend> make_cuda_backend(MeshShape, const CudaOptions&) { throw MachineError("no NVIDIA GPU or driver here: " + why_no_cuda()); }

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  return error == cudaSuccess && count > 0 ? "" : cuda::refusal(-1, "asking the driver for GPUs", cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace fsdp
