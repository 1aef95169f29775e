// Storage types of the host kernels and the arithmetic that goes with them: double computes in double; float and bf16 in float.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "models/dtype.h"
#include "models/error.h"

namespace fsdp {

// The upper half of an IEEE fp32 number; stored with round to nearest, ties to even (as PyTorch and the GPUs do).
struct BFloat16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] inline float load(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
[[nodiscard]] inline float load(float x) { return x; }
[[nodiscard]] inline double load(double x) { return x; }

[[nodiscard]] inline BFloat16 to_bfloat16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  // Half of the last kept bit, less one when that bit is even; a carry moves into the exponent, up to infinity.
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (u >> 16) | 0x40u;  // rounding would turn some NaNs into infinity
  return {static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

template <class T>
using Math = std::conditional_t<std::is_same_v<T, double>, double, float>;

inline void store(BFloat16& to, float x) { to = to_bfloat16(x); }
inline void store(float& to, float x) { to = x; }
inline void store(double& to, double x) { to = x; }

// A gradient that is written, or added to one that is there already.
template <class T>
inline void put(T& to, Math<T> x, bool accumulate) {
  store(to, accumulate ? load(to) + x : x);
}

// Calls f(T{}) with the storage type of a floating-point DType.
template <class F>
decltype(auto) with_type(DType type, F&& f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(BFloat16{});
    case DType::f16:
    case DType::i64: break;
  }
  throw MachineError("host kernels: no arithmetic for this element type; fp64, fp32 and bf16 have it");
}

}  // namespace fsdp
