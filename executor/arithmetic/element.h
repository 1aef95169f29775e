// Storage types of the host kernels and the arithmetic that goes with them: double computes in double; float, bf16 and
// fp16 in float. The same code, hence the same bits, in CUDA kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "executor/arithmetic/device.h"
#include "models/dtype.h"
#include "models/input/error.h"

namespace fsdp {

// The upper half of an IEEE fp32 number; stored with round to nearest, ties to even (as PyTorch and the GPUs do).
struct BFloat16 {
  std::uint16_t bits = 0;
};

// IEEE 754 binary16: sign, 5 bits of exponent (bias 15), 10 of fraction; stored with round to nearest, ties to even, as
// bf16 is.
struct Float16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] FSDP_DEVICE constexpr std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
[[nodiscard]] FSDP_DEVICE constexpr float float_of(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

[[nodiscard]] FSDP_DEVICE inline float load(BFloat16 x) { return float_of(static_cast<std::uint32_t>(x.bits) << 16); }
[[nodiscard]] FSDP_DEVICE inline float load(float x) { return x; }
[[nodiscard]] FSDP_DEVICE inline double load(double x) { return x; }

[[nodiscard]] FSDP_DEVICE inline BFloat16 to_bfloat16(float x) {
  const std::uint32_t u = bits_of(x);
  // Half of the last kept bit, less one when that bit is even; a carry moves into the exponent, up to infinity.
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t quiet_nan = (u >> 16) | 0x40u;  // rounding would turn some NaNs into infinity
  return {static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded)};
}

// Every binary16 is an fp32 number. Selections instead of branches, so that loops of it vectorise.
[[nodiscard]] FSDP_DEVICE inline float load(Float16 x) {
  const std::uint32_t magnitude = x.bits & 0x7fffu, sign = (x.bits & 0x8000u) << 16;
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);  // the biases differ by 127 - 15
  const std::uint32_t special = (magnitude << 13) | 0x7f800000u;  // infinity and NaN keep their fraction
  const auto subnormal = bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t finite = magnitude < 0x400u ? subnormal : normal;
  return float_of((magnitude < 0x7c00u ? finite : special) | sign);
}

[[nodiscard]] FSDP_DEVICE inline Float16 to_float16(float x) {
  const std::uint32_t u = bits_of(x), magnitude = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
  // Rounds as to_bfloat16 does; a carry moves into the exponent, up to infinity (from 65520 on).
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the spacing is 2^-24, which is that of fp32 from 0.5 to 1: adding 0.5 rounds there.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  const std::uint32_t quiet_nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const std::uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const std::uint32_t number = magnitude < 0x47800000u ? finite : 0x7c00u;  // 2^16
  return {static_cast<std::uint16_t>((magnitude > 0x7f800000u ? quiet_nan : number) | sign)};
}

template <class T>
using Math = std::conditional_t<std::is_same_v<T, double>, double, float>;

FSDP_DEVICE inline void store(BFloat16& to, float x) { to = to_bfloat16(x); }
FSDP_DEVICE inline void store(Float16& to, float x) { to = to_float16(x); }
FSDP_DEVICE inline void store(float& to, float x) { to = x; }
FSDP_DEVICE inline void store(double& to, double x) { to = x; }

// A gradient that is written, or added to one that is there already.
template <class T>
FSDP_DEVICE inline void put(T& to, Math<T> x, bool accumulate) {
  store(to, accumulate ? load(to) + x : x);
}

// Calls f(T{}) with the storage type of a floating-point DType.
template <class F>
decltype(auto) with_type(DType type, F&& f) {
  switch (type) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::bf16: return f(BFloat16{});
    case DType::f16: return f(Float16{});
    case DType::i64:
    case DType::f8: break;
  }
  throw MachineError("no arithmetic for this element type; fp64, fp32, bf16 and fp16 have it");
}

}  // namespace fsdp
