#include "executor/cuda/toolkit/kernels/moe/moe_launch.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_moe(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_moe(call, type, backward, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
