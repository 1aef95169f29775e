// Checks the result of every call of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

namespace fsdp::cuda {

// MachineError (see cuda/errors.h) unless the call succeeded. rank -1: none in particular.
void check(cudaError_t, std::int64_t rank, std::string_view what);

}  // namespace fsdp::cuda
