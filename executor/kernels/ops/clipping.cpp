// Norms of gradients, and clipping by them.
#include <cmath>
#include <cstring>

#include "executor/arithmetic/clip_factor.h"
#include "executor/kernels/call.h"
#include "executor/kernels/levels/host_kernels.h"

namespace fsdp {
namespace {

// NaN is larger than any number.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

template <class T>
double largest(const T* x, std::int64_t n) {
  double result = 0;
  for (std::int64_t i = 0; i < n; ++i) result = larger(result, std::abs(static_cast<double>(load(x[i]))));
  return result;
}

template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(load(x[i])) * static_cast<double>(load(x[i]));
  return sum;
}

// In the order of the elements: the same bits in every instruction set.
template <class T>
double sum_of_powers(const T* x, std::int64_t n, double p) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += std::pow(std::abs(static_cast<double>(load(x[i]))), p);
  return sum;
}

}  // namespace

void HostKernels::local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm) const {
  check_extent("clip_local_norm", "norm", 0, norm, 1, sizeof(double));
  const double sum = with_type(type, [&](auto element) {
    using T = decltype(element);
    double all = 0;
    for (const BufferView v : values) {
      const auto* x = reinterpret_cast<const T*>(v.data);
      const std::int64_t n = v.bytes / static_cast<std::int64_t>(sizeof(T));
      if (std::isinf(p)) all = larger(all, largest(x, n));
      else all += p == 2 ? sum_of_squares(x, n) : sum_of_powers(x, n, p);
    }
    return all;
  });
  std::memcpy(norm.data, &sum, sizeof sum);
}

void HostKernels::clip(DType type, std::span<const BufferView> values, double p, double limit, BufferView norm) const {
  check_extent("clip_scale", "norm", 0, norm, 1, sizeof(double));
  double sum = 0;
  std::memcpy(&sum, norm.data, sizeof sum);
  const double root = std::isinf(p) ? sum : p == 2 ? std::sqrt(sum) : std::pow(sum, 1 / p);
  const double factor = clip_factor(root, limit);
  for (const BufferView v : values) scale(type, v, v.bytes / size_of(type), factor);
}

}  // namespace fsdp
