#include "executor/cuda/toolkit/kernels/rotary.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_rotary(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_rotary(call, type, backward, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
