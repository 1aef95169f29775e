#include "executor/cuda/toolkit/kernels/data.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"
#include "executor/cuda/toolkit/kernels/stream_kernels.h"
#include "executor/cuda/toolkit/kernels/update.cuh"

namespace fsdp::cuda {

std::int64_t norm_scratch_bytes() { return kNormScratchBytes; }

void StreamKernels::local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm) const {
  launch_local_norm(type, values, p, norm, norm_scratch(), StreamLaunch{stream_});
}

void StreamKernels::clip(DType type, std::span<const BufferView> values, double p, double limit,
                         BufferView norm) const {
  launch_clip(type, values, p, limit, norm, StreamLaunch{stream_});
}

void StreamKernels::adamw(const OptimizerUpdate& update) const { launch_adamw(update, StreamLaunch{stream_}); }

void StreamKernels::sgd(const OptimizerUpdate& update) const { launch_sgd(update, StreamLaunch{stream_}); }

void StreamKernels::initial_values(std::uint64_t seed, const Parameter& parameter, std::int64_t begin,
                                   std::int64_t count, DType type, std::byte* to) const {
  launch_initial_values(initial_values_of(seed, parameter), begin, count, type, to, StreamLaunch{stream_});
}

void run_synthetic_tokens(std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
                          BufferView ids, BufferView targets, StreamHandle stream) {
  launch_synthetic_tokens(seed, first, work, vocab, ids, targets, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
