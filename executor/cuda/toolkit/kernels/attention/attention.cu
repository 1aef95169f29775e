#include "executor/cuda/toolkit/kernels/attention/attention.h"
#include "executor/cuda/toolkit/kernels/attention/attention_launch.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {
namespace {

struct AttentionLaunch {
  StreamLaunch launch;
  template <class Argument>
  void operator()(void (*kernel)(Argument), dim3 grid, int threads, int shared_bytes, const Argument& argument) const {
    launch({grid.x, grid.y, grid.z}, {static_cast<unsigned>(threads)}, static_cast<std::size_t>(shared_bytes), kernel,
           argument);
  }
};

}  // namespace

void launch_attention_forward(DType type, const AttentionForward& a, CUstream_st* stream) {
  forward_attention(type, a, AttentionLaunch{{stream}});
}
void launch_attention_backward(DType type, const AttentionBackward& a, CUstream_st* stream) {
  backward_attention(type, a, AttentionLaunch{{stream}});
}

}  // namespace fsdp::cuda
