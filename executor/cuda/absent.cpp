// In place of executor/cuda/toolkit where the build found no CUDA toolkit.
#include "executor/cuda_backend.h"
#include "models/input/error.h"

namespace fsdp {

std::unique_ptr<GpuBackend> make_cuda_backend(MeshShape, const CudaOptions&) {
  throw InputError("--backend", "cuda is not built in",
                   "install the CUDA toolkit 12 or 13 (nvcc) and build again, or use host");
}

std::string why_no_cuda() { return "cuda is not built in; install the CUDA toolkit 12 or 13 (nvcc) and build again"; }

}  // namespace fsdp
