// SwiGLU, GELU and the residual sum.
#include <cmath>

#include "executor/kernels/exp.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

template <class M>
M sigmoid(M x) {
  return M(1) / (M(1) + exp_of(-x));
}

// gelu(x) = x Phi(x), and its derivative Phi(x) + x phi(x), with the normal distribution Phi and its density phi.
template <class M>
struct ErfGelu {
  static M value(M x) { return x * M(0.5) * (M(1) + std::erf(x * M(0.70710678118654752440))); }
  static M slope(M x) {
    const M phi = M(0.39894228040143267794) * exp_of(M(-0.5) * x * x);
    return M(0.5) * (M(1) + std::erf(x * M(0.70710678118654752440))) + x * phi;
  }
};

// The tanh approximation: x/2 (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3), written as x sigmoid(2u), which is the same
// and loses no digits for large negative x.
template <class M>
struct TanhGelu {
  static constexpr M c = M(0.79788456080286535588), k = M(0.044715);
  static M value(M x) { return x * sigmoid(M(2) * c * (x + k * x * x * x)); }
  static M slope(M x) {
    const M s = sigmoid(M(2) * c * (x + k * x * x * x));
    return s + x * s * (M(1) - s) * M(2) * c * (M(1) + M(3) * k * x * x);
  }
};

std::int64_t elements(const Call& call) { return extent(call.tokens, call.shape.width); }

// Gate and up as a row of all elements each, or packed: alternating in every row of tokens or slots.
struct GatedRows {
  explicit GatedRows(const Call& call) : packed(call.shape.packed), rows(fsdp::rows(call.shape.experts, call.work)), width(call.shape.width) {
    if (packed) stride = 2 * width;
    else stride = width = extent(rows, width), rows = 1;
  }
  [[nodiscard]] std::int64_t read() const { return extent(rows, stride); }  // elements of an input
  [[nodiscard]] std::int64_t made() const { return extent(rows, width); }
  const bool packed;
  std::int64_t rows, width, stride = 0;
};

template <template <class> class Gelu, class T>
void gelu_values(const T* x, T* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) store(y[i], Gelu<Math<T>>::value(load(x[i])));
}

template <template <class> class Gelu, class T>
void gelu_gradient(const T* x, const T* dy, T* dx, std::int64_t n, bool accumulate) {
  for (std::int64_t i = 0; i < n; ++i) put(dx[i], load(dy[i]) * Gelu<Math<T>>::slope(load(x[i])), accumulate);
}

}  // namespace

template <class T>
void swiglu_forward(const Call& call) {
  const GatedRows z(call);
  const T *gate = call.input<T>(0, z.read()), *up = z.packed ? gate + z.width : call.input<T>(1, z.read());
  T* y = call.output<T>(0, z.made());
  for (std::int64_t r = 0; r < z.rows; ++r, gate += z.stride, up += z.stride, y += z.width)
    for (std::int64_t i = 0; i < z.width; ++i) {
      const Math<T> g = load(gate[i]);
      store(y[i], g * sigmoid(g) * load(up[i]));
    }
}

// silu'(g) = s (1 + g (1 - s)), s = sigmoid(g). One row of gradients; null: nobody wants it.
template <class T>
void swiglu_gradient(const T* gate, const T* up, const T* dy, T* dgate, bool gate_adds, T* dup, bool up_adds, std::int64_t n) {
  using M = Math<T>;
  if (dgate != nullptr && dup != nullptr && !gate_adds && !up_adds) {  // the usual case: one exponential for both
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const M g = load(gate[i]), d = load(dy[i]), s = sigmoid(g);
      store(dgate[i], d * load(up[i]) * s * (M(1) + g * (M(1) - s)));
      store(dup[i], d * g * s);
    }
    return;
  }
  for (std::int64_t i = 0; i < n && dgate != nullptr; ++i) {
    const M g = load(gate[i]), s = sigmoid(g);
    put(dgate[i], load(dy[i]) * load(up[i]) * s * (M(1) + g * (M(1) - s)), gate_adds);
  }
  for (std::int64_t i = 0; i < n && dup != nullptr; ++i) {
    const M g = load(gate[i]);
    put(dup[i], load(dy[i]) * g * sigmoid(g), up_adds);
  }
}

template <class T>
void swiglu_backward(const Call& call) {
  const GatedRows z(call);
  const T* dy = call.grad_output<T>(0, z.made());
  const T *gate = call.input<T>(0, z.read()), *up = z.packed ? gate + z.width : call.input<T>(1, z.read());
  T* dgate = call.grad_input<T>(0, z.read());
  T* dup = !z.packed ? call.grad_input<T>(1, z.read()) : dgate != nullptr ? dgate + z.width : nullptr;
  const bool gate_adds = call.adds_to_input(0), up_adds = call.adds_to_input(z.packed ? 0 : 1);
  for (std::int64_t r = 0; r < z.rows; ++r) {
    const std::int64_t at = r * z.stride;
    swiglu_gradient(gate + at, up + at, dy + r * z.width, dgate == nullptr ? dgate : dgate + at, gate_adds,
                    dup == nullptr ? dup : dup + at, up_adds, z.width);
  }
}

template <class T>
void gelu_forward(const Call& call) {
  const std::int64_t n = elements(call);
  const T* x = call.input<T>(0, n);
  T* y = call.output<T>(0, n);
  if (call.shape.tanh) gelu_values<TanhGelu>(x, y, n);
  else gelu_values<ErfGelu>(x, y, n);
}

template <class T>
void gelu_backward(const Call& call) {
  const std::int64_t n = elements(call);
  const T* dy = call.grad_output<T>(0, n);
  const T* x = call.input<T>(0, n);
  T* dx = call.grad_input<T>(0, n);
  if (dx == nullptr) return;
  if (call.shape.tanh) gelu_gradient<TanhGelu>(x, dy, dx, n, call.adds_to_input(0));
  else gelu_gradient<ErfGelu>(x, dy, dx, n, call.adds_to_input(0));
}

template <class T>
void add_forward(const Call& call) {
  const std::int64_t n = elements(call);
  const T *a = call.input<T>(0, n), *b = call.input<T>(1, n);
  T* y = call.output<T>(0, n);
  for (std::int64_t i = 0; i < n; ++i) store(y[i], load(a[i]) + load(b[i]));
}

template void swiglu_forward<double>(const Call&);
template void swiglu_forward<float>(const Call&);
template void swiglu_forward<BFloat16>(const Call&);
template void swiglu_forward<Float16>(const Call&);
template void swiglu_backward<double>(const Call&);
template void swiglu_backward<float>(const Call&);
template void swiglu_backward<BFloat16>(const Call&);
template void swiglu_backward<Float16>(const Call&);
template void gelu_forward<double>(const Call&);
template void gelu_forward<float>(const Call&);
template void gelu_forward<BFloat16>(const Call&);
template void gelu_forward<Float16>(const Call&);
template void gelu_backward<double>(const Call&);
template void gelu_backward<float>(const Call&);
template void gelu_backward<BFloat16>(const Call&);
template void gelu_backward<Float16>(const Call&);
template void add_forward<double>(const Call&);
template void add_forward<float>(const Call&);
template void add_forward<BFloat16>(const Call&);
template void add_forward<Float16>(const Call&);

}  // namespace fsdp
