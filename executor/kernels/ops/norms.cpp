// RMSNorm and LayerNorm. `groups` norms of `width` elements stand side by side in one token (per-head norms of q and
// k).
//
// RMSNorm:   r = 1 / sqrt(mean(x^2) + eps), n = r x,           y = n w
// LayerNorm: r = 1 / sqrt(var(x) + eps),    n = r (x - mean),  y = n w + b          (biased variance, as PyTorch)
// Backward, with g = dy w:  RMSNorm   dx = r (g - n mean(g n))
//                           LayerNorm dx = r (g - mean(g) - n mean(g n)),   dw = sum dy n,  db = sum dy
// Kept for backward: r, and for LayerNorm the mean before it, [rows] each.
#include <cmath>

#include "executor/arithmetic/column_sum.h"
#include "executor/kernels/extents.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

template <class T>
Math<T> sum_of(const T* x, std::int64_t n) {
  Math<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += load(x[i]);
  return sum;
}

// Sum of (x - centre)^2.
template <class T>
Math<T> squares_around(const T* x, Math<T> centre, std::int64_t n) {
  Math<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += (load(x[i]) - centre) * (load(x[i]) - centre);
  return sum;
}

// y = n w (+ b), one row. `weight` or `bias` may be null.
template <class T>
void write_row(const T* x, Math<T> centre, Math<T> r, const T* weight, const T* bias, T* y, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const Math<T> n = (load(x[i]) - centre) * r;
    store(y[i], n * load(weight[i]) + (bias != nullptr ? load(bias[i]) : Math<T>(0)));
  }
}

// dx of one row; `centred`: LayerNorm, which also takes out mean(g).
template <class T>
void backward_row(const T* x, Math<T> centre, Math<T> r, bool centred, const T* weight, const T* dy, T* dx,
                  bool accumulate, std::int64_t width) {
  Math<T> g_sum = 0, gn_sum = 0;
#pragma omp simd reduction(+ : g_sum, gn_sum)
  for (std::int64_t i = 0; i < width; ++i) {
    const Math<T> g = load(dy[i]) * load(weight[i]);
    g_sum += g;
    gn_sum += g * (load(x[i]) - centre) * r;
  }
  const Math<T> g_mean = centred ? g_sum / static_cast<Math<T>>(width) : Math<T>(0);
  const Math<T> gn_mean = gn_sum / static_cast<Math<T>>(width);
  for (std::int64_t i = 0; i < width; ++i) {
    const Math<T> n = (load(x[i]) - centre) * r;
    put(dx[i], r * (load(dy[i]) * load(weight[i]) - g_mean - n * gn_mean), accumulate);
  }
}

}  // namespace

template <class T>
void rms_norm_forward(const Call& call) {
  const NormRows e(call);
  const T* x = call.input<T>(0, e.elements);
  const T* weight = call.param<T>(0, e.width);
  T* y = call.output<T>(0, e.elements);
  Math<T>* rs = call.extra_to_keep<Math<T>>(e.rows);
  for (std::int64_t t = 0; t < e.rows; ++t) {
    const T* row = x + t * e.width;
    const Math<T> mean_square = squares_around(row, Math<T>(0), e.width) / static_cast<Math<T>>(e.width);
    const Math<T> r = Math<T>(1) / std::sqrt(mean_square + static_cast<Math<T>>(call.shape.eps));
    write_row<T>(row, 0, r, weight, nullptr, y + t * e.width, e.width);
    if (rs != nullptr) rs[t] = r;
  }
}

template <class T>
void rms_norm_backward(const Call& call) {
  const NormRows e(call);
  const T* dy = call.grad_output<T>(0, e.elements);
  const T* x = call.input<T>(0, e.elements);
  const T* weight = call.param<T>(0, e.width);
  const Math<T>* rs = call.extra<Math<T>>(e.rows);
  if (T* dx = call.grad_input<T>(0, e.elements))
    for (std::int64_t t = 0; t < e.rows; ++t)
      backward_row<T>(x + t * e.width, 0, rs[t], false, weight, dy + t * e.width, dx + t * e.width,
                      call.adds_to_input(0), e.width);
  if (T* dw = call.grad_param<T>(0, e.width))
    column_sum(e.rows, e.width, dw, call.adds_to_param(0), [=](std::int64_t t, std::int64_t i) {
      return load(dy[t * e.width + i]) * load(x[t * e.width + i]) * rs[t];
    });
}

template <class T>
void layer_norm_forward(const Call& call) {
  const NormRows e(call);
  const T* x = call.input<T>(0, e.elements);
  const T* weight = call.param<T>(0, e.width);
  const T* bias = call.params() > 1 ? call.param<T>(1, e.width) : nullptr;
  T* y = call.output<T>(0, e.elements);
  Math<T>* kept = call.extra_to_keep<Math<T>>(extent(2, e.rows));
  for (std::int64_t t = 0; t < e.rows; ++t) {
    const T* row = x + t * e.width;
    const Math<T> mean = sum_of(row, e.width) / static_cast<Math<T>>(e.width);
    const Math<T> variance = squares_around(row, mean, e.width) / static_cast<Math<T>>(e.width);
    const Math<T> r = Math<T>(1) / std::sqrt(variance + static_cast<Math<T>>(call.shape.eps));
    write_row(row, mean, r, weight, bias, y + t * e.width, e.width);
    if (kept != nullptr) kept[t] = mean, kept[e.rows + t] = r;
  }
}

template <class T>
void layer_norm_backward(const Call& call) {
  const NormRows e(call);
  const T* dy = call.grad_output<T>(0, e.elements);
  const T* x = call.input<T>(0, e.elements);
  const T* weight = call.param<T>(0, e.width);
  const Math<T>* means = call.extra<Math<T>>(extent(2, e.rows));
  const Math<T>* rs = means + e.rows;
  if (T* dx = call.grad_input<T>(0, e.elements))
    for (std::int64_t t = 0; t < e.rows; ++t)
      backward_row<T>(x + t * e.width, means[t], rs[t], true, weight, dy + t * e.width, dx + t * e.width,
                      call.adds_to_input(0), e.width);
  if (T* dw = call.grad_param<T>(0, e.width))
    column_sum(e.rows, e.width, dw, call.adds_to_param(0), [=](std::int64_t t, std::int64_t i) {
      return load(dy[t * e.width + i]) * (load(x[t * e.width + i]) - means[t]) * rs[t];
    });
  if (call.params() < 2) return;
  if (T* db = call.grad_param<T>(1, e.width))
    column_sum(e.rows, e.width, db, call.adds_to_param(1),
               [=](std::int64_t t, std::int64_t i) { return load(dy[t * e.width + i]); });
}

template void rms_norm_forward<double>(const Call&);
template void rms_norm_forward<float>(const Call&);
template void rms_norm_forward<BFloat16>(const Call&);
template void rms_norm_forward<Float16>(const Call&);
template void rms_norm_backward<double>(const Call&);
template void rms_norm_backward<float>(const Call&);
template void rms_norm_backward<BFloat16>(const Call&);
template void rms_norm_backward<Float16>(const Call&);
template void layer_norm_forward<double>(const Call&);
template void layer_norm_forward<float>(const Call&);
template void layer_norm_forward<BFloat16>(const Call&);
template void layer_norm_forward<Float16>(const Call&);
template void layer_norm_backward<double>(const Call&);
template void layer_norm_backward<float>(const Call&);
template void layer_norm_backward<BFloat16>(const Call&);
template void layer_norm_backward<Float16>(const Call&);

}  // namespace fsdp
