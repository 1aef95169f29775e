#include "executor/cuda/toolkit/kernels/elementwise.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"
#include "executor/cuda/toolkit/kernels/stream_kernels.h"

namespace fsdp::cuda {

void run_elementwise(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_elementwise(call, type, backward, StreamLaunch{stream});
}

void StreamKernels::convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
                            bool accumulate) const {
  launch_convert(from_type, from, to_type, to, elements, accumulate, StreamLaunch{stream_});
}

void StreamKernels::scale(DType type, BufferView values, std::int64_t elements, double factor) const {
  launch_scale(type, values, elements, factor, StreamLaunch{stream_});
}

void StreamKernels::copy(std::byte* to, const std::byte* from, std::int64_t bytes) const {
  StreamLaunch{stream_}.copy(to, from, bytes);
}

void StreamKernels::zero(BufferView view) const { StreamLaunch{stream_}.zero(view.data, view.bytes); }

}  // namespace fsdp::cuda
