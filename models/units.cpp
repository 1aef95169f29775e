#include "models/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

struct Unit {
  std::string_view suffix;
  double factor;
};

constexpr std::array kByteUnits{Unit{"B", 1},        Unit{"KiB", 0x1p10}, Unit{"MiB", 0x1p20},
                                Unit{"GiB", 0x1p30}, Unit{"TiB", 0x1p40}, Unit{"kB", 1e3},
                                Unit{"MB", 1e6},     Unit{"GB", 1e9},     Unit{"TB", 1e12}};
// b = bit, B = byte; factors are to bytes per second.
constexpr std::array kRateUnits{
    Unit{"B/s", 1},     Unit{"kB/s", 1e3},     Unit{"MB/s", 1e6},     Unit{"GB/s", 1e9},     Unit{"TB/s", 1e12},
    Unit{"b/s", 0.125}, Unit{"kb/s", 0.125e3}, Unit{"Mb/s", 0.125e6}, Unit{"Gb/s", 0.125e9}, Unit{"Tb/s", 0.125e12}};
constexpr std::array kFlopsUnits{Unit{"FLOP/s", 1},    Unit{"kFLOP/s", 1e3},  Unit{"MFLOP/s", 1e6},
                                 Unit{"GFLOP/s", 1e9}, Unit{"TFLOP/s", 1e12}, Unit{"PFLOP/s", 1e15}};
// Divisors: n / 1e6 is the closest double to n microseconds, n * 1e-6 is not always.
constexpr std::array kSecondUnits{Unit{"s", 1}, Unit{"ms", 1e3}, Unit{"us", 1e6}, Unit{"ns", 1e9}};
constexpr std::array kLongTimeUnits{Unit{"min", kMinute.count()}, Unit{"h", kHour.count()}, Unit{"d", kDay.count()}};

struct Parsed {
  double number = 0;
  std::string_view digits;
  Unit unit{};
};

// A plain decimal number ("80", "3.35", "1e-5") and one of `units`, with at most one space between them.
std::optional<Parsed> split(std::string_view text, std::span<const Unit> units) {
  if (text.empty() || !((text[0] >= '0' && text[0] <= '9') || text[0] == '.'))
    return std::nullopt;  // no sign, no space before it, no "nan"
  Parsed p;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, p.number);
  if (error != std::errc() || !std::isfinite(p.number)) return std::nullopt;
  p.digits = std::string_view(text.data(), static_cast<std::size_t>(rest - text.data()));
  std::string_view suffix(rest, static_cast<std::size_t>(end - rest));
  if (suffix.starts_with(' ')) suffix.remove_prefix(1);
  for (const Unit& u : units) {
    if (suffix == u.suffix) {
      p.unit = u;
      return p;
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse(std::string_view text, const Origin& where, std::string_view expected) {
  throw InputError(where, "\"" + printable(text) + "\" was not understood", "expected " + std::string(expected));
}

double parse_double(std::string_view text, const Origin& where, std::span<const Unit> units,
                    std::string_view expected) {
  const auto p = split(text, units);
  if (!p) refuse(text, where, expected);
  const double value = p->number * p->unit.factor;
  if (!std::isfinite(value)) refuse(text, where, std::string(expected) + " that is not too large to represent");
  return value;
}

// Three or four significant digits: "71.3", "1.46", "312", "1000".
std::string significant(double v) {
  const double a = std::fabs(v);
  if (a == 0) return "0";
  if (a < 9.995) return fmt::format("{:.2f}", v);
  if (a < 99.95) return fmt::format("{:.1f}", v);
  return fmt::format("{:.0f}", v);
}

// Scales by the largest unit that leaves at least 1, e.g. 71.3 GiB.
std::string scaled(double v, std::span<const Unit> ascending) {
  const Unit* best = &ascending[0];
  for (const Unit& u : ascending) {
    if (std::fabs(v) >= u.factor * 0.9995) best = &u;
  }
  return fmt::format("{} {}", significant(v / best->factor), best->suffix);
}

}  // namespace

Bytes parse_bytes(std::string_view text, const Origin& where) {
  constexpr std::string_view expected = "a size with its unit, such as \"80GiB\" or \"512MiB\"";
  const auto p = split(text, kByteUnits);
  if (!p) refuse(text, where, expected);
  // Whole numbers stay exact beyond 2^53.
  std::int64_t whole = 0;
  const char* end = p->digits.data() + p->digits.size();
  const auto [rest, error] = std::from_chars(p->digits.data(), end, whole);
  if (error == std::errc() && rest == end) {
    const auto factor = static_cast<std::int64_t>(p->unit.factor);
    if (whole > std::numeric_limits<std::int64_t>::max() / factor) refuse(text, where, "a size below 8 EiB");
    return Bytes(whole * factor);
  }
  const double value = p->number * p->unit.factor;
  if (!(value < 0x1p63)) refuse(text, where, "a size below 8 EiB");
  return Bytes(static_cast<std::int64_t>(std::llround(value)));
}

BytesPerSecond parse_rate(std::string_view text, const Origin& where) {
  return BytesPerSecond(
      parse_double(text, where, kRateUnits, "a rate with its unit, such as \"450GB/s\" or \"400Gb/s\""));
}

FlopsPerSecond parse_flops_rate(std::string_view text, const Origin& where) {
  return FlopsPerSecond(parse_double(text, where, kFlopsUnits, "a compute rate with its unit, such as \"989TFLOP/s\""));
}

Seconds parse_seconds(std::string_view text, const Origin& where) {
  const auto p = split(text, kSecondUnits);
  if (!p) refuse(text, where, "a time with its unit, such as \"14us\" or \"1.5ms\"");
  return Seconds(p->number / p->unit.factor);
}

Seconds parse_long_time(std::string_view text, const Origin& where) {
  if (const auto p = split(text, kSecondUnits)) return Seconds(p->number / p->unit.factor);
  return Seconds(parse_double(text, where, kLongTimeUnits, "a time with its unit, such as \"50000h\" or \"10min\""));
}

// fmt's "{}" of a double is the shortest text that reads back as the same double; the base unit keeps it exact.
std::string exact_text(Bytes v) {
  for (std::size_t i = 4; i > 0; --i) {
    const auto factor = static_cast<std::int64_t>(kByteUnits[i].factor);
    if (v.count() != 0 && v.count() % factor == 0) return fmt::format("{}{}", v.count() / factor, kByteUnits[i].suffix);
  }
  return fmt::format("{}B", v.count());
}
std::string exact_text(BytesPerSecond v) { return fmt::format("{}B/s", v.count()); }
std::string exact_text(FlopsPerSecond v) { return fmt::format("{}FLOP/s", v.count()); }
std::string exact_text(Seconds v) { return fmt::format("{}s", v.count()); }

std::string human(Bytes v) { return scaled(static_cast<double>(v.count()), std::span(kByteUnits).first(5)); }
std::string human(BytesPerSecond v) { return scaled(v.count(), std::span(kRateUnits).first(5)); }
std::string human(FlopsPerSecond v) { return scaled(v.count(), kFlopsUnits); }
std::string human(Seconds v) {
  constexpr std::array units{Unit{"ns", 1e-9}, Unit{"us", 1e-6}, Unit{"ms", 1e-3}, Unit{"s", 1}};
  if (v.count() == 0) return "0 s";
  return scaled(v.count(), units);
}

std::string human_count(double n) {
  constexpr std::array units{Unit{"", 1}, Unit{"k", 1e3}, Unit{"M", 1e6}, Unit{"B", 1e9}, Unit{"T", 1e12}};
  if (std::fabs(n) < 999.5 && n == std::floor(n)) return fmt::format("{:.0f}", n);
  std::string text = scaled(n, units);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

std::string with_commas(std::int64_t n) {
  std::string digits = fmt::format("{}", n);
  const std::size_t first = digits[0] == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::int64_t checked_mul(std::int64_t a, std::int64_t b, std::string_view where) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw InputError(std::string(where), fmt::format("{} * {} overflows a 64-bit size", a, b), "use smaller sizes");
  }
  return product;
}

std::int64_t checked_add(std::int64_t a, std::int64_t b, std::string_view where) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw InputError(std::string(where), fmt::format("{} + {} overflows a 64-bit size", a, b), "use smaller sizes");
  }
  return sum;
}

}  // namespace fsdp
