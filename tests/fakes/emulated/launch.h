// A Launch (executor/cuda/toolkit/kernels/launch.cuh) that runs kernels on the processor.
#pragma once

// First: it defines what .cuh files take for granted.
#include "tests/fakes/emulated/cuda.h"

#include "executor/cuda/toolkit/kernels/launch.cuh"

namespace fsdp::testing {

struct EmulatedLaunch {
  std::uint64_t seed = 1;
  template <class... P, class... A>
  void operator()(cuda::Extent3 grid, cuda::Extent3 block, std::size_t shared_bytes, void (*kernel)(P...),
                  A... arguments) const {
    emulation::emulate(
        {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, [&] { kernel(arguments...); }, seed);
  }
  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  void zero(void* to, std::int64_t bytes) const {
    if (bytes > 0) std::memset(to, 0, static_cast<std::size_t>(bytes));
  }
};

}  // namespace fsdp::testing
