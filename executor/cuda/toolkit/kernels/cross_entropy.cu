#include "executor/cuda/toolkit/kernels/cross_entropy.cuh"
#include "executor/cuda/toolkit/kernels/stream.cuh"

namespace fsdp::cuda {

void run_cross_entropy(const Call& call, DType type, bool backward, StreamHandle stream) {
  launch_cross_entropy(call, type, backward, StreamLaunch{stream});
}

void run_loss_statistic(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args, double weight,
                        StreamHandle stream) {
  with_type(type, [&](auto element) {
    launch_loss_statistic<decltype(element)>(op, work.tokens(), args, weight, StreamLaunch{stream});
  });
}

}  // namespace fsdp::cuda
