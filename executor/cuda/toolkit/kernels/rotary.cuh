// Rotary position embedding (executor/kernels/ops/rotary.cpp). A thread has some neighbouring pairs of one position: it
// makes their angles in fp64 once and turns them in every head (of its part of the grid's y) of every sequence.
#pragma once

#include <cmath>

#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/kernels/call.h"

namespace fsdp::cuda {

// kCount divides `half`.
template <class T, int kCount>
__global__ void rotary_kernel(const T* x, T* y, std::int64_t sequences, std::int64_t seq_len, std::int64_t heads,
                              std::int64_t half, double theta, double direction, bool accumulate) {
  const std::int64_t packs = half / kCount;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < seq_len * packs;
       at += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t position = at / packs, pair = at % packs * kCount;
    Pack<Math<T>, kCount> cosine, sine;
    for (int k = 0; k < kCount; ++k) {
      const double angle =
          static_cast<double>(position) * std::pow(theta, -static_cast<double>(pair + k) / static_cast<double>(half));
      cosine.at[k] = static_cast<Math<T>>(std::cos(angle)),
      sine.at[k] = static_cast<Math<T>>(direction * std::sin(angle));
    }
    for (std::int64_t s = 0; s < sequences; ++s)
      for (std::int64_t h = blockIdx.y; h < heads; h += gridDim.y) {
        const std::int64_t i = ((s * seq_len + position) * heads + h) * 2 * half + pair;
        const Pack<T, kCount> a = load_pack<kCount>(x + i), b = load_pack<kCount>(x + i + half);
        Pack<T, kCount> to_a = accumulate ? load_pack<kCount>(y + i) : Pack<T, kCount>{};
        Pack<T, kCount> to_b = accumulate ? load_pack<kCount>(y + i + half) : Pack<T, kCount>{};
        for (int k = 0; k < kCount; ++k) {
          put(to_a.at[k], load(a.at[k]) * cosine.at[k] - load(b.at[k]) * sine.at[k], accumulate);
          put(to_b.at[k], load(b.at[k]) * cosine.at[k] + load(a.at[k]) * sine.at[k], accumulate);
        }
        store_pack(y + i, to_a);
        store_pack(y + i + half, to_b);
      }
  }
}

inline constexpr std::int64_t kTurnsOfAngle =
    16;  // at least so many heads share the making of an angle, if there are so many

template <class T, class Launch>
void launch_rotation(const Call& call, bool backward, const Launch& launch) {
  const std::int64_t dim = call.shape.head_dim, half = dim / 2;
  if (dim % 2 != 0) call.fail("a head of " + std::to_string(dim) + " elements has no pairs to rotate");
  const std::int64_t n = extent(call.tokens, call.shape.heads, dim);
  const T* x = backward ? call.grad_output<T>(0, n) : call.input<T>(0, n);
  T* y = backward ? call.grad_input<T>(0, n) : call.output<T>(0, n);
  if (y == nullptr || n == 0) return;
  const std::int64_t heads = call.shape.heads,
                     parts = std::clamp<std::int64_t>(call.work.sequences * heads / kTurnsOfAngle, 1, heads);
  with_packs<kPack<T>>(half % kPack<T> == 0 && aligned_to_16(x, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({blocks_for(call.work.seq_len * half / c, 64), rows_of_grid(parts)}, {64}, 0, rotary_kernel<T, c>, x, y,
           call.work.sequences, call.work.seq_len, heads, half, call.shape.theta, backward ? -1.0 : 1.0,
           backward && call.adds_to_input(0));
  });
}

template <class Launch>
void launch_rotary(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) { launch_rotation<decltype(element)>(call, backward, launch); });
}

}  // namespace fsdp::cuda
