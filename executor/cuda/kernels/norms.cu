#include "executor/cuda/kernels/norms.cuh"
#include "executor/cuda/kernels/stream.cuh"

namespace fsdp::cuda {

void run_norms(const Call& call, DType type, bool backward, StreamHandle stream) { launch_norms(call, type, backward, StreamLaunch{stream}); }

}  // namespace fsdp::cuda
