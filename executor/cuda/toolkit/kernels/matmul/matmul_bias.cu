#include "executor/cuda/toolkit/kernels/matmul/matmul_bias.cuh"
#include "executor/cuda/toolkit/kernels/matmul/matmul_bias.h"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void launch_bias_rows(DType type, const void* bias, std::int64_t rows, std::int64_t columns, void* to,
                      CUstream_st* stream) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    StreamLaunch{stream}({blocks_for(rows * columns)}, {kThreads}, 0, bias_rows_kernel<T>, static_cast<const T*>(bias),
                         rows, columns, static_cast<T*>(to));
  });
}

}  // namespace fsdp::cuda
