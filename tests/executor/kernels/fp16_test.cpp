// IEEE 754 binary16 as a storage type, against its definition: (-1)^s * 2^(e - 15) * (1 + f / 1024), subnormals f *
// 2^-24.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "executor/arithmetic/element.h"

using namespace fsdp;

namespace {

double defined(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25);
  if (exponent == 0) value = std::ldexp(static_cast<double>(fraction), -24);
  if (exponent == 31) value = fraction == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x8000u) != 0 ? -value : value;
}

Float16 half(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }

// What lies beyond the largest number counts as 2^16 when it is decided what is nearest.
double magnitude(std::uint32_t bits) { return bits == 0x7c00 ? 65536.0 : defined(bits); }

}  // namespace

TEST_CASE("all 65,536 values load as defined and are stored as they were") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double expected = defined(bits), got = load(half(bits));
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(got));
      REQUIRE(std::isnan(load(to_float16(static_cast<float>(got)))));
      REQUIRE(std::signbit(got) == ((bits & 0x8000u) != 0));
    } else {
      REQUIRE(got == expected);
      REQUIRE(std::signbit(got) == std::signbit(expected));
      REQUIRE(to_float16(static_cast<float>(expected)).bits == bits);
    }
  }
}

TEST_CASE("between two neighbours: the nearer one, and at the middle the even one") {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = magnitude(bits), high = magnitude(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // 12 bits: exact in fp32
    const std::uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      REQUIRE(to_float16(s * middle).bits == (even | sign));
      REQUIRE(to_float16(s * std::nextafter(middle, 0.0f)).bits == (bits | sign));
      REQUIRE(to_float16(s * std::nextafter(middle, HUGE_VALF)).bits == ((bits + 1) | sign));
    }
  }
}

// A sample of all fp32 numbers by bit pattern, each beside the candidates that a search in the table of all values
// finds.
TEST_CASE("any fp32 number goes to the nearest value") {
  for (std::uint64_t step = 0; step < (1u << 22); ++step) {
    const auto u = static_cast<std::uint32_t>(step * 1021 % (std::uint64_t{1} << 32));
    const auto x = std::bit_cast<float>(u);
    const std::uint32_t got = to_float16(x).bits;
    if (std::isnan(x)) {
      REQUIRE(std::isnan(load(half(got))));
      continue;
    }
    REQUIRE((got & 0x8000u) == (u >> 16 & 0x8000u));
    const std::uint32_t m = got & 0x7fffu;
    REQUIRE(m <= 0x7c00);
    const double a = std::abs(static_cast<double>(x)), here = std::abs(a - magnitude(m));
    if (m > 0) REQUIRE(here <= std::abs(a - magnitude(m - 1)));
    if (m < 0x7c00) REQUIRE(here <= std::abs(magnitude(m + 1) - a));
  }
  CHECK(to_float16(65519.996f).bits == 0x7bff);
  CHECK(to_float16(65520.0f).bits == 0x7c00);
  CHECK(to_float16(HUGE_VALF).bits == 0x7c00);
  CHECK(to_float16(-HUGE_VALF).bits == 0xfc00);
  CHECK(to_float16(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(to_float16(-0.0f).bits == 0x8000);
}
