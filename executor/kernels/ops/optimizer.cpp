// AdamW and SGD on one rank's shard of a unit, as torch.optim.AdamW and torch.optim.SGD (no momentum) compute them.
#include "executor/arithmetic/adam_step.h"
#include "executor/kernels/call.h"
#include "executor/kernels/levels/table.h"
#include "planner/layout.h"

namespace fsdp {
namespace {

void check_rank(const UnitLayout& layout, std::int64_t rank) {
  if (rank < 0 || rank >= layout.shards)
    throw MachineError("optimizer: shard " + std::to_string(rank) + " of " + std::to_string(layout.shards) +
                       " does not exist");
}

}  // namespace

void kernels::adamw(const UnitLayout& layout, std::int64_t shard_rank, const Optimizer& optimizer, std::int64_t step,
                    DType master, BufferView gradient, BufferView shard, BufferView state1, BufferView state2,
                    GradientPlaces places) {
  check_rank(layout, shard_rank);
  if (step < 1) throw MachineError("optimizer: steps count from 1, not " + std::to_string(step));
  const std::int64_t local = layout.local_trained_elements(shard_rank), size = size_of(master);
  check_extent("adamw", "gradient", 0, gradient, gradient_elements(layout, shard_rank, places), size);
  check_extent("adamw", "shard", 0, shard, layout.shard_elements, size);
  check_extent("adamw", "state", 1, state1, local, size);
  check_extent("adamw", "state", 2, state2, local, size);
  with_type(master, [&](auto element) {
    using T = decltype(element);
    const AdamStep<Math<T>> adam(optimizer, step);
    auto* g = reinterpret_cast<T*>(gradient.data);
    auto* p = reinterpret_cast<T*>(shard.data);
    auto* m = reinterpret_cast<T*>(state1.data);
    auto* v = reinterpret_cast<T*>(state2.data);
    for_each_trained(layout, shard_rank, places, [=](const TrainedPart& part) {
      const AdamStep<Math<T>> of_this_step = adam;  // on the stack: no element can be one of its scalars
      const T* gradients = g + part.gradient;
      T *values = p + part.shard, *means = m + part.state, *squares = v + part.state;
      for (std::int64_t i = 0; i < part.elements; ++i)
        of_this_step.apply(gradients[i], values[i], means[i], squares[i]);
    });
  });
}

// Without momentum there is no state: `state1` may be absent and is left as it is.
void kernels::sgd(const UnitLayout& layout, std::int64_t shard_rank, const Optimizer& optimizer, DType master,
                  BufferView gradient, BufferView shard, BufferView, GradientPlaces places) {
  check_rank(layout, shard_rank);
  check_extent("sgd", "gradient", 0, gradient, gradient_elements(layout, shard_rank, places), size_of(master));
  check_extent("sgd", "shard", 0, shard, layout.shard_elements, size_of(master));
  with_type(master, [&](auto element) {
    using T = decltype(element);
    const SgdStep<Math<T>> sgd_step(optimizer);
    auto* g = reinterpret_cast<const T*>(gradient.data);
    auto* p = reinterpret_cast<T*>(shard.data);
    for_each_trained(layout, shard_rank, places, [&](const TrainedPart& part) {
      for (std::int64_t i = 0; i < part.elements; ++i) sgd_step.apply(g[part.gradient + i], p[part.shard + i]);
    });
  });
}

}  // namespace fsdp
