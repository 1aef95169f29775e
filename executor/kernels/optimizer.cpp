// AdamW and SGD on one rank's shard of a unit, as torch.optim.AdamW and torch.optim.SGD (no momentum) compute them.
#include <cmath>

#include "executor/kernels/call.h"
#include "planner/layout.h"
#include "executor/kernels/table.h"

namespace fsdp {
namespace {

// Scalars of a step in double, rounded to the arithmetic type M where they meet a tensor, as PyTorch does.
//   p <- p (1 - lr wd);  m <- m + (1 - b1)(g - m);  v <- b2 v + (1 - b2) g^2
//   p <- p - (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
template <class M>
struct AdamStep {
  M decay, one_minus_beta1, beta2, one_minus_beta2, eps, step_size, root_correction2;
  AdamStep(const Optimizer& o, std::int64_t step) {
    const double t = static_cast<double>(step);
    decay = static_cast<M>(1.0 - o.lr * o.weight_decay);
    one_minus_beta1 = static_cast<M>(1.0 - o.beta1);
    beta2 = static_cast<M>(o.beta2);
    one_minus_beta2 = static_cast<M>(1.0 - o.beta2);
    eps = static_cast<M>(o.eps);
    step_size = static_cast<M>(o.lr / (1.0 - std::pow(o.beta1, t)));
    root_correction2 = static_cast<M>(std::sqrt(1.0 - std::pow(o.beta2, t)));
  }

  template <class T>
  void apply(const T* gradient, T* value, T* mean, T* square, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) {
      const M g = load(gradient[i]);
      const M m = load(mean[i]) + one_minus_beta1 * (g - load(mean[i]));
      const M v = load(square[i]) * beta2 + one_minus_beta2 * g * g;
      store(mean[i], m);
      store(square[i], v);
      store(value[i], load(value[i]) * decay - step_size * (m / (std::sqrt(v) / root_correction2 + eps)));
    }
  }
};

void check_rank(const UnitLayout& layout, std::int64_t rank) {
  if (rank < 0 || rank >= layout.shards)
    throw MachineError("optimizer: shard " + std::to_string(rank) + " of " + std::to_string(layout.shards) + " does not exist");
}

}  // namespace

void kernels::adamw(const UnitLayout& layout, std::int64_t shard_rank, const Optimizer& optimizer, std::int64_t step, DType master,
           BufferView gradient, BufferView shard, BufferView state1, BufferView state2, GradientPlaces places) {
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
    for_each_trained(layout, shard_rank, places, [&](const TrainedPart& part) {
      adam.apply(g + part.gradient, p + part.shard, m + part.state, v + part.state, part.elements);
    });
  });
}

// g <- g + wd p;  p <- p - lr g. Without momentum there is no state: `state1` may be absent and is left as it is.
void kernels::sgd(const UnitLayout& layout, std::int64_t shard_rank, const Optimizer& optimizer, DType master, BufferView gradient,
         BufferView shard, BufferView, GradientPlaces places) {
  check_rank(layout, shard_rank);
  check_extent("sgd", "gradient", 0, gradient, gradient_elements(layout, shard_rank, places), size_of(master));
  check_extent("sgd", "shard", 0, shard, layout.shard_elements, size_of(master));
  with_type(master, [&](auto element) {
    using T = decltype(element);
    using M = Math<T>;
    const M lr = static_cast<M>(optimizer.lr), decay = static_cast<M>(optimizer.weight_decay);
    auto* g = reinterpret_cast<const T*>(gradient.data);
    auto* p = reinterpret_cast<T*>(shard.data);
    for_each_trained(layout, shard_rank, places, [&](const TrainedPart& part) {
      for (std::int64_t i = 0; i < part.elements; ++i) {
        T& value = p[part.shard + i];
        store(value, load(value) - lr * (load(g[part.gradient + i]) + decay * load(value)));
      }
    });
  });
}

}  // namespace fsdp
