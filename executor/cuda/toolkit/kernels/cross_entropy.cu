#include "executor/cuda/toolkit/kernels/cross_entropy.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_cross_entropy(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_cross_entropy(call, type, backward, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
