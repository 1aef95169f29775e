// Rotary position embedding (executor/kernels/rotary.cpp). A thread has one pair of one position: it makes the angle in fp64 once and turns
// that pair in every head of every sequence.
#pragma once

#include <cmath>

#include "executor/cuda/kernels/launch.cuh"
#include "executor/kernels/call.h"

namespace fsdp::cuda {

template <class T>
__global__ void rotary_kernel(const T* x, T* y, std::int64_t sequences, std::int64_t seq_len, std::int64_t heads, std::int64_t half, double theta,
                              double direction, bool accumulate) {
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < seq_len * half;
       at += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t position = at / half, pair = at % half;
    const double angle = static_cast<double>(position) * std::pow(theta, -static_cast<double>(pair) / static_cast<double>(half));
    const auto cosine = static_cast<Math<T>>(std::cos(angle)), sine = static_cast<Math<T>>(direction * std::sin(angle));
    for (std::int64_t s = 0; s < sequences; ++s)
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t i = ((s * seq_len + position) * heads + h) * 2 * half + pair;
        const Math<T> a = load(x[i]), b = load(x[i + half]);
        put(y[i], a * cosine - b * sine, accumulate);
        put(y[i + half], b * cosine + a * sine, accumulate);
      }
  }
}

template <class T, class Launch>
void launch_rotation(const Call& call, bool backward, const Launch& launch) {
  const std::int64_t dim = call.shape.head_dim, half = dim / 2;
  if (dim % 2 != 0) call.fail("a head of " + std::to_string(dim) + " elements has no pairs to rotate");
  const std::int64_t n = extent(call.tokens, call.shape.heads, dim);
  const T* x = backward ? call.grad_output<T>(0, n) : call.input<T>(0, n);
  T* y = backward ? call.grad_input<T>(0, n) : call.output<T>(0, n);
  if (y == nullptr || n == 0) return;
  launch({blocks_for(call.work.seq_len * half, 64)}, {64}, 0, rotary_kernel<T>, x, y, call.work.sequences, call.work.seq_len, call.shape.heads,
         half, call.shape.theta, backward ? -1.0 : 1.0, backward && call.adds_to_input(0));
}

template <class Launch>
void launch_rotary(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) { launch_rotation<decltype(element)>(call, backward, launch); });
}

}  // namespace fsdp::cuda
