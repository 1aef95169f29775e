#include "executor/cuda/toolkit/device/check.h"

#include <string>

#include "executor/cuda/errors.h"
#include "models/input/error.h"

namespace fsdp::cuda {

void check(cudaError_t error, std::int64_t rank, std::string_view what) {
  if (error == cudaSuccess) return;
  const std::string name = cudaGetErrorName(error);
  if (!is_sticky(name)) (void)cudaGetLastError();  // so that the next call does not report it again
  throw MachineError(refusal(rank, what, name, cudaGetErrorString(error)));
}

}  // namespace fsdp::cuda
