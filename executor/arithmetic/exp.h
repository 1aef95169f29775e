// e^x as a loop body that a compiler vectorises without a vector math library.
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/arithmetic/element.h"

namespace fsdp {

[[nodiscard]] FSDP_DEVICE inline double exp_of(double x) { return std::exp(x); }

// Within 2 ulp of std::exp on [-87, 88]; saturates outside (1.6e-38 and 1.7e38), which softmax and silu do not notice;
// NaN stays NaN. x = n ln 2 + r with |r| <= ln(2) / 2 (ln 2 in two parts, Cody and Waite); e^r by its Taylor polynomial
// of degree 7, whose first left-out term is (ln(2) / 2)^8 / 8! = 5e-9 relative, a twelfth of an ulp; then times 2^n
// through the exponent bits.
[[nodiscard]] FSDP_DEVICE inline float exp_of(float x) {
  x = -87.0f > x ? -87.0f : x;
  x = 88.0f < x ? 88.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = x * 1.44269504088896341f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // 0.693359375 has 9 bits: n times it is exact
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const std::uint32_t exponent = (bits_of(shifted) - 0x4b400000u + 127u) << 23;
  return p * float_of(exponent);
}

}  // namespace fsdp
