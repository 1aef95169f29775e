// AdamW and SGD of one element, as torch.optim computes them. Scalars of a step in double, rounded to the arithmetic
// type M where they meet a tensor, as PyTorch does.
//   p <- p (1 - lr wd);  m <- m + (1 - b1)(g - m);  v <- b2 v + (1 - b2) g^2
//   p <- p - (lr / (1 - b1^t)) m / (sqrt(v) / sqrt(1 - b2^t) + eps)
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/arithmetic/element.h"
#include "planner/plan.h"

namespace fsdp {

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
  FSDP_DEVICE void apply(const T& gradient, T& value, T& mean, T& square) const {
    const M g = load(gradient);
    const M m = load(mean) + one_minus_beta1 * (g - load(mean));
    const M v = load(square) * beta2 + one_minus_beta2 * g * g;
    store(mean, m);
    store(square, v);
    store(value, load(value) * decay - step_size * (m / (std::sqrt(v) / root_correction2 + eps)));
  }
};

// SGD: g <- g + wd p;  p <- p - lr g. With momentum b, which is zero before the first step (PyTorch's is then a copy of
// g, which is the same): b <- mu b + g;  p <- p - lr b.
template <class M>
struct SgdStep {
  M lr, decay, momentum;
  explicit SgdStep(const Optimizer& o)
      : lr(static_cast<M>(o.lr)), decay(static_cast<M>(o.weight_decay)), momentum(static_cast<M>(o.momentum)) {}
  template <class T>
  FSDP_DEVICE void apply(const T& gradient, T& value) const {
    store(value, load(value) - lr * (load(gradient) + decay * load(value)));
  }
  template <class T>
  FSDP_DEVICE void apply(const T& gradient, T& value, T& buffer) const {
    store(buffer, momentum * load(buffer) + (load(gradient) + decay * load(value)));
    store(value, load(value) - lr * load(buffer));
  }
};

}  // namespace fsdp
