// What a lane of the attention kernels does in one or two instructions of the machine; elsewhere (tests on the
// processor) by its meaning.
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/arithmetic/element.h"
#include "executor/cuda/toolkit/kernels/primitives.cuh"

namespace fsdp::cuda {

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x) % 32; }

#ifdef __CUDACC__
#define FSDP_UNROLL _Pragma("unroll")
// 2^x; below 2^-126: 0.
__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Two numbers rounded to nearest even, `low` in the lower half.
template <class T>
__device__ __forceinline__ std::uint32_t pack_pair(float low, float high) {
  std::uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#else
#define FSDP_UNROLL
inline float power_of_two(float x) { return x < -126.0f ? 0.0f : std::exp2(x); }
template <class T>
std::uint32_t pack_pair(float low, float high) {
  T l, h;
  store(l, low), store(h, high);
  return static_cast<std::uint32_t>(l.bits) | static_cast<std::uint32_t>(h.bits) << 16;
}
#endif

// Two neighbours in memory.
template <class T>
struct alignas(4) Pair {
  T low, high;
};

}  // namespace fsdp::cuda
