// Rotary position embedding in the half-rotation form of Hugging Face's Llama: at position p, the pair (x[i], x[i +
// d/2]) of each head is turned by the angle p * theta^(-2i/d). The gradient is turned back: a rotation is orthogonal.
#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

constexpr std::int64_t kPairs = 64;  // turned together: their cosines and sines lie on the stack

// y = x turned; they never overlap. For `count` pairs (x[i], x[half + i]).
template <class T>
void turn(const T* x, T* y, std::int64_t half, std::int64_t count, const Math<T>* cosine, const Math<T>* sine,
          bool accumulate) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const Math<T> a = load(x[i]), b = load(x[half + i]);
    put(y[i], a * cosine[i] - b * sine[i], accumulate);
    put(y[half + i], b * cosine[i] + a * sine[i], accumulate);
  }
}

// Cosines and sines of one position's angles for some pairs, made one position after the other in fp64. Where the
// arithmetic is fp32 most are turned on from the position before (cos(a + b) = cos a cos b - sin a sin b), and made
// anew at every 128th: 127 such turns round to 3e-14 at most, a millionth of an fp32's ulp.
template <class M>
class Angles {
 public:
  Angles(double theta, std::int64_t dim, std::int64_t begin, std::int64_t count) : count_(count) {
    for (std::int64_t i = 0; i < count; ++i) {
      step_[i] = std::pow(theta, -2.0 * static_cast<double>(begin + i) / static_cast<double>(dim));
      step_cosine_[i] = std::cos(step_[i]);
      step_sine_[i] = std::sin(step_[i]);
    }
  }

  // Positions 0, 1, 2 ...; direction +1 or -1.
  void set(std::int64_t position, double direction) {
    if (std::is_same_v<M, double> || position % 128 == 0) {
      for (std::int64_t i = 0; i < count_; ++i) {
        const double angle = static_cast<double>(position) * step_[i];
        cosine_[i] = std::cos(angle);
        sine_[i] = std::sin(angle);
      }
    } else {
      for (std::int64_t i = 0; i < count_; ++i) {
        const double c = cosine_[i], s = sine_[i];
        cosine_[i] = c * step_cosine_[i] - s * step_sine_[i];
        sine_[i] = s * step_cosine_[i] + c * step_sine_[i];
      }
    }
    for (std::int64_t i = 0; i < count_; ++i) {
      cosine[i] = static_cast<M>(cosine_[i]);
      sine[i] = static_cast<M>(direction * sine_[i]);
    }
  }

  M cosine[kPairs], sine[kPairs];

 private:
  std::int64_t count_;
  double step_[kPairs], step_cosine_[kPairs], step_sine_[kPairs], cosine_[kPairs], sine_[kPairs];
};

// Turns every head of every sequence by direction * angle.
template <class T>
void rotate(const Call& call, const T* x, T* y, double direction, bool accumulate) {
  const std::int64_t dim = call.shape.head_dim, half = dim / 2, width = call.shape.heads * dim;
  for (std::int64_t begin = 0; begin < half; begin += kPairs) {
    const std::int64_t count = std::min(kPairs, half - begin);
    Angles<Math<T>> angles(call.shape.theta, dim, begin, count);
    for (std::int64_t p = 0; p < call.work.seq_len; ++p) {
      angles.set(p, direction);
      for (std::int64_t s = 0; s < call.work.sequences; ++s)
        for (std::int64_t h = 0; h < call.shape.heads; ++h) {
          const std::int64_t at = (s * call.work.seq_len + p) * width + h * dim + begin;
          turn(x + at, y + at, half, count, angles.cosine, angles.sine, accumulate);
        }
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
