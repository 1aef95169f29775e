// What every kernel here is made with: pieces of 16 bytes, loops over the grid, and how kernels are started.
//
// Functions that start kernels (`template <class Launch> void launch_...`) take a Launch, which either puts a kernel on
// a CUDA stream (stream.cuh) or runs it on the processor (tests):
//   launch(grid, block, shared_bytes, kernel, arguments...);   launch.copy(to, from, bytes);   launch.zero(to, bytes);
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "executor/arithmetic/element.h"
#include "executor/cuda/toolkit/kernels/primitives.cuh"

namespace fsdp::cuda {

struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
};

inline constexpr unsigned kThreads = 256;
inline constexpr std::int64_t kMostBlocks =
    4096;  // of loops over the grid: more than any GPU runs at once, so all get an even part

// Blocks for `work` threads' work, at least one.
inline unsigned blocks_for(std::int64_t work, std::int64_t threads = kThreads) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((work + threads - 1) / threads, 1, kMostBlocks));
}
// For grid.y and grid.z, over which kernels loop.
inline unsigned rows_of_grid(std::int64_t rows) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(rows, 1, 65535));
}

// n elements read or written at once.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T at[n];
};
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

template <int n, class T>
__device__ __forceinline__ Pack<T, n> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, n>*>(from);
}
template <int n, class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, n>& pack) {
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

template <class... P>
bool aligned_to_16(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);  // null is aligned
}

// Calls f with a constant: n where packs can be used, else 1.
template <int n, class F>
void with_packs(bool packs, F&& f) {
  if (packs) f(std::integral_constant<int, n>{});
  else f(std::integral_constant<int, 1>{});
}

// Elements [0, n) by the threads of the grid's x: f(constant count, first index). Packs of `kCount`, then what is left
// one by one.
template <int kCount, class F>
__device__ __forceinline__ void for_elements(std::int64_t n, const F& f) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = thread * kCount; i + kCount <= n; i += threads * kCount)
    f(std::integral_constant<int, kCount>{}, i);
  if constexpr (kCount > 1)
    for (std::int64_t i = n / kCount * kCount + thread; i < n; i += threads) f(std::integral_constant<int, 1>{}, i);
}

// The same by the threads of one block, for rows whose length `kCount` divides.
template <int kCount, class F>
__device__ __forceinline__ void for_row(std::int64_t n, const F& f) {
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * kCount; i < n;
       i += static_cast<std::int64_t>(blockDim.x) * kCount)
    f(i);
}

// Threads of a block that has a row of n elements to itself: whole warps, each thread with several packs of a long row.
inline unsigned threads_for_row(std::int64_t n, std::int64_t most = 512) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((n / 8 + 31) / 32 * 32, 32, most));
}

}  // namespace fsdp::cuda
