// Quantities with units. Bytes, flops, seconds and rates are distinct types that do not mix; the operators below are
// the only ones that exist, and each is a sentence of physics. Text carries its unit and the parser is strict:
//
//   parse_bytes("80GiB", "gpu.json: memory")      -> Bytes{85899345920}
//   parse_rate("400 Gb/s", "--fabric")            -> BytesPerSecond{5e10}   (b = bit, B = byte; G = 1000^3)
//   parse_bytes("80", "--memory-limit")           -> InputError: expected a size with its unit, such as "80GiB"
//
// Absent on purpose: implicit conversion from a bare number, and any way to add bytes to seconds.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "models/input/error.h"

namespace fsdp {

template <class Tag, class Rep>
class Quantity {
 public:
  using rep = Rep;
  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep count) : count_(count) {}
  [[nodiscard]] constexpr Rep count() const { return count_; }

  friend constexpr auto operator<=>(const Quantity&, const Quantity&) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.count_ + b.count_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.count_ - b.count_); }
  friend constexpr Quantity operator*(Quantity a, Rep k) { return Quantity(a.count_ * k); }
  friend constexpr Quantity operator*(Rep k, Quantity a) { return a * k; }
  friend constexpr Quantity operator/(Quantity a, Rep k) { return Quantity(a.count_ / k); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.count_) / static_cast<double>(b.count_);
  }
  constexpr Quantity& operator+=(Quantity b) {
    count_ += b.count_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity b) {
    count_ -= b.count_;
    return *this;
  }

 private:
  Rep count_ = 0;
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;
using Flops = Quantity<struct FlopsTag, double>;
using Seconds = Quantity<struct SecondsTag, double>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;
inline constexpr Seconds kMinute(60), kHour(3600), kDay(86'400);

constexpr Seconds operator/(Bytes b, BytesPerSecond r) { return Seconds(static_cast<double>(b.count()) / r.count()); }
constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return Seconds(f.count() / r.count()); }
constexpr BytesPerSecond operator/(Bytes b, Seconds s) {
  return BytesPerSecond(static_cast<double>(b.count()) / s.count());
}
constexpr FlopsPerSecond operator/(Flops f, Seconds s) { return FlopsPerSecond(f.count() / s.count()); }

// Strict parsers: a number and a unit with at most one space between them, and nothing else. They throw
// InputError(where, ...) on anything else and on negative, non-finite or overflowing values.
[[nodiscard]] Bytes parse_bytes(std::string_view text, const Origin& where);          // B KiB MiB GiB TiB kB MB GB TB
[[nodiscard]] BytesPerSecond parse_rate(std::string_view text, const Origin& where);  // B/s .. TB/s, b/s .. Tb/s
[[nodiscard]] FlopsPerSecond parse_flops_rate(std::string_view text, const Origin& where);  // FLOP/s .. PFLOP/s
[[nodiscard]] Seconds parse_seconds(std::string_view text, const Origin& where);            // ns us ms s
[[nodiscard]] Seconds parse_long_time(std::string_view text, const Origin& where);          // the same, and min h d

// Exact text: parse_x(exact_text(x)) == x for every value that parse_x can return. For files.
[[nodiscard]] std::string exact_text(Bytes);
[[nodiscard]] std::string exact_text(BytesPerSecond);
[[nodiscard]] std::string exact_text(FlopsPerSecond);
[[nodiscard]] std::string exact_text(Seconds);

// Text for people, three or four significant digits: "71.3 GiB", "1.46 s", "450 GB/s", "312 TFLOP/s". For tables.
[[nodiscard]] std::string human(Bytes);
[[nodiscard]] std::string human(Seconds);
[[nodiscard]] std::string human(BytesPerSecond);
[[nodiscard]] std::string human(FlopsPerSecond);
[[nodiscard]] std::string human_count(double n);        // 8030261248 -> "8.03 B"
[[nodiscard]] std::string with_commas(std::int64_t n);  // 8030261248 -> "8,030,261,248"

// a * b and a + b for sizes that come from input: throw InputError(where, "... overflows ...") instead of wrapping.
[[nodiscard]] std::int64_t checked_mul(std::int64_t a, std::int64_t b, std::string_view where);
[[nodiscard]] std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view where);

}  // namespace fsdp
