// SwiGLU, GELU, the residual sum, and products with a number.
#include "executor/arithmetic/activations.h"
#include "executor/kernels/extents.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

std::int64_t elements(const Call& call) { return extent(call.tokens, call.shape.width); }

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

// One row of gradients; null: nobody wants it.
template <class T>
void swiglu_gradient(const T* gate, const T* up, const T* dy, T* dgate, bool gate_adds, T* dup, bool up_adds,
                     std::int64_t n) {
  using M = Math<T>;
  if (dgate != nullptr && dup != nullptr && !gate_adds && !up_adds) {  // the usual case: one exponential for both
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) {
      const M g = load(gate[i]), d = load(dy[i]), s = sigmoid(g);
      store(dgate[i], d * load(up[i]) * silu_slope(g, s));
      store(dup[i], d * g * s);
    }
    return;
  }
  for (std::int64_t i = 0; i < n && dgate != nullptr; ++i) {
    const M g = load(gate[i]), s = sigmoid(g);
    put(dgate[i], load(dy[i]) * load(up[i]) * silu_slope(g, s), gate_adds);
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

template <class T>
void scale_forward(const Call& call) {
  const std::int64_t n = elements(call);
  const T* x = call.input<T>(0, n);
  T* y = call.output<T>(0, n);
  const auto factor = static_cast<Math<T>>(call.shape.factor);
  for (std::int64_t i = 0; i < n; ++i) store(y[i], factor * load(x[i]));
}

template <class T>
void scale_backward(const Call& call) {
  const std::int64_t n = elements(call);
  const T* dy = call.grad_output<T>(0, n);
  T* dx = call.grad_input<T>(0, n);
  if (dx == nullptr) return;
  const auto factor = static_cast<Math<T>>(call.shape.factor);
  for (std::int64_t i = 0; i < n; ++i) put(dx[i], factor * load(dy[i]), call.adds_to_input(0));
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
template void scale_forward<double>(const Call&);
template void scale_forward<float>(const Call&);
template void scale_forward<BFloat16>(const Call&);
template void scale_forward<Float16>(const Call&);
template void scale_backward<double>(const Call&);
template void scale_backward<float>(const Call&);
template void scale_backward<BFloat16>(const Call&);
template void scale_backward<Float16>(const Call&);

}  // namespace fsdp
