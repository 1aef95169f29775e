#include "executor/cuda/toolkit/kernels/embedding.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_embeddings(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_embeddings(call, type, backward, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
