// The .cu files of executor/cuda/toolkit/kernels/ on the fake runtime (runtime.cpp): a launch puts a kernel and copies
// of its arguments on the stream, as CUDA does, and the stream's thread emulates it, thread by thread. First: it
// defines what .cuh files take for granted.
#include "tests/fakes/emulated/cuda.h"

#include "executor/cuda/toolkit/kernels/launches.h"

#include <functional>

#include "executor/cuda/toolkit/kernels/launch.cuh"

void push_on_stream(CUstream_st*, std::function<void()>);

#define FSDP_CUDA_STREAM_LAUNCH
namespace fsdp::cuda {

struct StreamLaunch {
  StreamHandle stream;
  template <class... P, class... A>
  void operator()(Extent3 grid, Extent3 block, std::size_t shared_bytes, void (*kernel)(P...), A... arguments) const {
    push_on_stream(stream, [=] {
      emulation::emulate({grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes,
                         [&] { kernel(arguments...); });
    });
  }
  void copy(void* to, const void* from, std::int64_t bytes) const {
    if (bytes > 0) push_on_stream(stream, [=] { std::memmove(to, from, static_cast<std::size_t>(bytes)); });
  }
  void zero(void* to, std::int64_t bytes) const {
    if (bytes > 0) push_on_stream(stream, [=] { std::memset(to, 0, static_cast<std::size_t>(bytes)); });
  }
};

}  // namespace fsdp::cuda

#include "executor/cuda/toolkit/kernels/attention/attention.cu"
#include "executor/cuda/toolkit/kernels/cross_entropy.cu"
#include "executor/cuda/toolkit/kernels/elementwise.cu"
#include "executor/cuda/toolkit/kernels/embedding.cu"
#include "executor/cuda/toolkit/kernels/layouts.cu"
#include "executor/cuda/toolkit/kernels/matmul/matmul_bias.cu"
#include "executor/cuda/toolkit/kernels/moe/moe.cu"
#include "executor/cuda/toolkit/kernels/norms.cu"
#include "executor/cuda/toolkit/kernels/rotary.cu"
#include "executor/cuda/toolkit/kernels/update.cu"
