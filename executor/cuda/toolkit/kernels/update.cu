#include "executor/cuda/toolkit/kernels/data.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"
#include "executor/cuda/toolkit/kernels/update.cuh"

namespace fsdp::cuda {

std::int64_t norm_scratch_bytes() { return kNormScratchBytes; }

void run_local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm, std::byte* scratch,
                    StreamHandle stream) {
  launch_local_norm(type, values, p, norm, scratch, StreamLaunch{stream});
}

void run_clip(DType type, std::span<const BufferView> values, double p, double limit, BufferView norm,
              StreamHandle stream) {
  launch_clip(type, values, p, limit, norm, StreamLaunch{stream});
}

void run_adamw(const UnitLayout& layout, std::int64_t rank, const Optimizer& optimizer, std::int64_t step, DType type,
               BufferView gradient, BufferView shard, BufferView state1, BufferView state2, GradientPlaces places,
               StreamHandle stream) {
  launch_adamw(layout, rank, optimizer, step, type, gradient, shard, state1, state2, places, StreamLaunch{stream});
}

void run_sgd(const UnitLayout& layout, std::int64_t rank, const Optimizer& optimizer, DType type, BufferView gradient,
             BufferView shard, GradientPlaces places, StreamHandle stream) {
  launch_sgd(layout, rank, optimizer, type, gradient, shard, places, StreamLaunch{stream});
}

void run_synthetic_tokens(std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
                          BufferView ids, BufferView targets, StreamHandle stream) {
  launch_synthetic_tokens(seed, first, work, vocab, ids, targets, StreamLaunch{stream});
}

void run_initial_values(const InitialValues& initial, std::int64_t begin, std::int64_t n, DType type, std::byte* to,
                        StreamHandle stream) {
  launch_initial_values(initial, begin, n, type, to, StreamLaunch{stream});
}

}  // namespace fsdp::cuda
