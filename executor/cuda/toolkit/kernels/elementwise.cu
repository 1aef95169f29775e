#include "executor/cuda/toolkit/kernels/elementwise.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_elementwise(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_elementwise(call, type, backward, StreamLaunch{stream});
}

void run_convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t n, bool accumulate,
                 StreamHandle stream) {
  launch_convert(from_type, from, to_type, to, n, accumulate, StreamLaunch{stream});
}

void run_scale(DType type, BufferView values, std::int64_t n, double factor, StreamHandle stream) {
  launch_scale(type, values, n, factor, StreamLaunch{stream});
}

void run_copy(std::byte* to, const std::byte* from, std::int64_t bytes, StreamHandle stream) {
  StreamLaunch{stream}.copy(to, from, bytes);
}

void run_zero(std::byte* to, std::int64_t bytes, StreamHandle stream) { StreamLaunch{stream}.zero(to, bytes); }

}  // namespace fsdp::cuda
