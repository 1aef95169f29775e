// Rotary position embedding in the half-rotation form of Hugging Face's Llama: at position p, the pair (x[i], x[i + d/2]) of each
// head is turned by the angle p * theta^(-2i/d). The gradient is turned back: a rotation is orthogonal.
#include <algorithm>
#include <cmath>
#include <string>

#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

constexpr std::int64_t kPairs = 64;  // turned together: their cosines and sines lie on the stack

// y = x turned, for `count` pairs (x[i], x[half + i]).
template <class T>
void turn(const T* x, T* y, std::int64_t half, std::int64_t count, const Math<T>* cosine, const Math<T>* sine, bool accumulate) {
  for (std::int64_t i = 0; i < count; ++i) {
    const Math<T> a = load(x[i]), b = load(x[half + i]);
    put(y[i], a * cosine[i] - b * sine[i], accumulate);
    put(y[half + i], b * cosine[i] + a * sine[i], accumulate);
  }
}

// Turns every head of every sequence by direction * angle, direction +1 or -1. Angles are made once per position, in fp64.
template <class T>
void rotate(const Call& call, const T* x, T* y, double direction, bool accumulate) {
  Math<T> cosine[kPairs], sine[kPairs];
  const std::int64_t dim = call.shape.head_dim, half = dim / 2, width = call.shape.heads * dim;
  for (std::int64_t p = 0; p < call.work.seq_len; ++p)
    for (std::int64_t begin = 0; begin < half; begin += kPairs) {
      const std::int64_t count = std::min(kPairs, half - begin);
      for (std::int64_t i = 0; i < count; ++i) {
        const double exponent = -2.0 * static_cast<double>(begin + i) / static_cast<double>(dim);
        const double angle = static_cast<double>(p) * std::pow(call.shape.theta, exponent);
        cosine[i] = static_cast<Math<T>>(std::cos(angle));
        sine[i] = static_cast<Math<T>>(direction * std::sin(angle));
      }
      for (std::int64_t s = 0; s < call.work.sequences; ++s)
        for (std::int64_t h = 0; h < call.shape.heads; ++h) {
          const std::int64_t at = (s * call.work.seq_len + p) * width + h * dim + begin;
          turn(x + at, y + at, half, count, cosine, sine, accumulate);
        }
    }
}

std::int64_t rotary_elements(const Call& call) {
  if (call.shape.head_dim % 2 != 0)
    call.fail("a head of " + std::to_string(call.shape.head_dim) + " elements has no pairs to rotate");
  return extent(call.tokens, call.shape.heads, call.shape.head_dim);
}

}  // namespace

template <class T>
void rotary_forward(const Call& call) {
  const std::int64_t n = rotary_elements(call);
  rotate(call, call.input<T>(0, n), call.output<T>(0, n), 1.0, false);
}

template <class T>
void rotary_backward(const Call& call) {
  const std::int64_t n = rotary_elements(call);
  const T* dy = call.grad_output<T>(0, n);
  if (T* dx = call.grad_input<T>(0, n)) rotate(call, dy, dx, -1.0, call.adds_to_input(0));
}

template void rotary_forward<double>(const Call&);
template void rotary_forward<float>(const Call&);
template void rotary_forward<BFloat16>(const Call&);
template void rotary_forward<Float16>(const Call&);
template void rotary_backward<double>(const Call&);
template void rotary_backward<float>(const Call&);
template void rotary_backward<BFloat16>(const Call&);
template void rotary_backward<Float16>(const Call&);

}  // namespace fsdp
