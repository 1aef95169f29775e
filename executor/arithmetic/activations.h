// SwiGLU and GELU of one number, in the arithmetic type M: what the kernels of the host and of GPUs compute.
#pragma once

#include <cmath>

#include "executor/arithmetic/device.h"
#include "executor/arithmetic/exp.h"

namespace fsdp {

template <class M>
FSDP_DEVICE inline M sigmoid(M x) {
  return M(1) / (M(1) + exp_of(-x));
}

// gelu(x) = x Phi(x), and its derivative Phi(x) + x phi(x), with the normal distribution Phi and its density phi.
template <class M>
struct ErfGelu {
  FSDP_DEVICE static M value(M x) { return x * M(0.5) * (M(1) + std::erf(x * M(0.70710678118654752440))); }
  FSDP_DEVICE static M slope(M x) {
    const M phi = M(0.39894228040143267794) * exp_of(M(-0.5) * x * x);
    return M(0.5) * (M(1) + std::erf(x * M(0.70710678118654752440))) + x * phi;
  }
};

// The tanh approximation: x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2u), which is
// the same and loses no digits for large negative x.
template <class M>
struct TanhGelu {
  static constexpr M c = M(0.79788456080286535588), k = M(0.044715);
  FSDP_DEVICE static M value(M x) { return x * sigmoid(M(2) * c * (x + k * x * x * x)); }
  FSDP_DEVICE static M slope(M x) {
    const M s = sigmoid(M(2) * c * (x + k * x * x * x));
    return s + x * s * (M(1) - s) * M(2) * c * (M(1) + M(3) * k * x * x);
  }
};

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g).
template <class M>
FSDP_DEVICE inline M silu_slope(M g, M s) {
  return s * (M(1) + g * (M(1) - s));
}

}  // namespace fsdp
