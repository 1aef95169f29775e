#include "executor/cuda/toolkit/kernels/norms.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_norms(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_norms(call, type, backward, StreamLaunch{stream});
}

void run_bias_gradient(DType type, const void* from, std::int64_t rows, std::int64_t columns, void* to, bool accumulate,
                       BufferView scratch, StreamHandle stream) {
  launch_bias_gradient(type, from, rows, columns, to, accumulate, scratch, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
