// The libraries beside the tests, which the backend takes for a toolkit's.
#pragma once

#include <cstdlib>
#include <memory>

#include "executor/cuda/toolkit/device/libraries.h"

namespace fsdp::testing {

inline const cuda::Libraries& libraries() {
  static const auto found = ::setenv("CUDA_HOME", FSDP_LIBRARIES_ON_HOST, 1) == 0 ? cuda::find_libraries() : nullptr;
  return *found;
}

}  // namespace fsdp::testing
