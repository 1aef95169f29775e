// AdamW and SGD on one rank's shard of a unit, as torch.optim.AdamW and torch.optim.SGD compute them.
#include "executor/arithmetic/adam_step.h"
#include "executor/kernels/call.h"
#include "executor/kernels/levels/host_kernels.h"
#include "planner/layout.h"

namespace fsdp {
namespace {

void check_rank(const UnitLayout& layout, std::int64_t rank) {
  if (rank < 0 || rank >= layout.shards)
    throw MachineError("optimizer: shard " + std::to_string(rank) + " of " + std::to_string(layout.shards) +
                       " does not exist");
}

}  // namespace

void HostKernels::adamw(const OptimizerUpdate& u) const {
  check_rank(u.layout, u.shard_rank);
  if (u.step < 1) throw MachineError("optimizer: steps count from 1, not " + std::to_string(u.step));
  const std::int64_t local = u.layout.local_trained_elements(u.shard_rank), size = size_of(u.type);
  check_extent("adamw", "gradient", 0, u.gradient, gradient_elements(u.layout, u.shard_rank, u.places), size);
  check_extent("adamw", "shard", 0, u.shard, u.layout.shard_elements, size);
  check_extent("adamw", "state", 1, u.state1, local, size);
  check_extent("adamw", "state", 2, u.state2, local, size);
  with_type(u.type, [&](auto element) {
    using T = decltype(element);
    const AdamStep<Math<T>> adam(u.optimizer, u.step);
    auto* g = reinterpret_cast<T*>(u.gradient.data);
    auto* p = reinterpret_cast<T*>(u.shard.data);
    auto* m = reinterpret_cast<T*>(u.state1.data);
    auto* v = reinterpret_cast<T*>(u.state2.data);
    for_each_trained(u.layout, u.shard_rank, u.places, [=](const TrainedPart& part) {
      const AdamStep<Math<T>> of_this_step = adam;  // on the stack: no element can be one of its scalars
      const T* gradients = g + part.gradient;
      T *values = p + part.shard, *means = m + part.state, *squares = v + part.state;
      for (std::int64_t i = 0; i < part.elements; ++i)
        of_this_step.apply(gradients[i], values[i], means[i], squares[i]);
    });
  });
}

void HostKernels::sgd(const OptimizerUpdate& u) const {
  check_rank(u.layout, u.shard_rank);
  check_extent("sgd", "gradient", 0, u.gradient, gradient_elements(u.layout, u.shard_rank, u.places), size_of(u.type));
  check_extent("sgd", "shard", 0, u.shard, u.layout.shard_elements, size_of(u.type));
  const bool momentum = u.optimizer.momentum != 0;
  if (momentum)
    check_extent("sgd", "momentum", 1, u.state1, u.layout.local_trained_elements(u.shard_rank), size_of(u.type));
  with_type(u.type, [&](auto element) {
    using T = decltype(element);
    const SgdStep<Math<T>> sgd_step(u.optimizer);
    auto* g = reinterpret_cast<const T*>(u.gradient.data);
    auto* p = reinterpret_cast<T*>(u.shard.data);
    auto* b = reinterpret_cast<T*>(u.state1.data);
    for_each_trained(u.layout, u.shard_rank, u.places, [=](const TrainedPart& part) {
      const SgdStep<Math<T>> of_this_step = sgd_step;  // as above
      const T* gradients = g + part.gradient;
      T* values = p + part.shard;
      if (!momentum) {
        for (std::int64_t i = 0; i < part.elements; ++i) of_this_step.apply(gradients[i], values[i]);
        return;
      }
      T* buffers = b + part.state;
      for (std::int64_t i = 0; i < part.elements; ++i) of_this_step.apply(gradients[i], values[i], buffers[i]);
    });
  });
}

}  // namespace fsdp
