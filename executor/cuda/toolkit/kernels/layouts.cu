#include "executor/cuda/toolkit/kernels/layouts.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"
#include "executor/cuda/toolkit/kernels/stream_kernels.h"

namespace fsdp::cuda {

void StreamKernels::scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                                    BufferView input) const {
  launch_scatter_copy_in(layout, from, full, to, input, StreamLaunch{stream_});
}

void StreamKernels::gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered,
                                    std::span<const BufferView> full) const {
  launch_gather_copy_out(layout, type, gathered, full, StreamLaunch{stream_});
}

void StreamKernels::gather_parts_copy_out(const UnitLayout& layout, std::int64_t n, DType type, BufferView gathered,
                                          std::span<const BufferView> full) const {
  launch_gather_parts_copy_out(layout, n, type, gathered, full, StreamLaunch{stream_});
}

void StreamKernels::reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer,
                            std::int64_t piece_bytes, bool to_rows) const {
  launch_reorder(from, to, shards, outer, piece_bytes, to_rows, StreamLaunch{stream_});
}

}  // namespace fsdp::cuda
