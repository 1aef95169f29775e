#include "cli/numbers.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "cli/field_flags.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

constexpr std::int64_t kKilo = 1024, kMega = kKilo * kKilo;

// Of digits; nullopt: something else, or more than 64 bits.
std::optional<std::int64_t> whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> real_number(std::string_view text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string range(std::int64_t least, std::int64_t most) { return with_commas(least) + " to " + with_commas(most); }

[[noreturn]] void refuse_size(const std::string& text, const std::string& where, bool small, std::int64_t least,
                              std::int64_t most) {
  throw InputError(where, "'" + printable(text) + "' is too " + (small ? "small" : "large"),
                   "give a whole number from " + range(least, most));
}

// A count of tokens without its limits: "4096", "32k", "1.5M", each also with the word "tokens" behind it.
std::optional<double> tokens_in(std::string_view text) {
  if (text.ends_with("tokens")) {
    text.remove_suffix(std::string_view("tokens").size());
    if (text.ends_with(' ')) text.remove_suffix(1);
  }
  double factor = 1;
  if (text.ends_with('k') || text.ends_with('K')) factor = kKilo;
  if (text.ends_with('M')) factor = kMega;
  if (factor > 1) text.remove_suffix(1);
  if (text.find_first_not_of(factor > 1 ? "0123456789." : "0123456789") != std::string_view::npos) return std::nullopt;
  const auto number = real_number(text);
  if (!number || *number * factor != std::floor(*number * factor)) return std::nullopt;
  return *number * factor;
}

}  // namespace

std::int64_t parse_count(const std::string& text, const std::string& where, std::int64_t least, std::int64_t most) {
  const auto value = whole_number(text);
  if (value && *value >= least && *value <= most) return *value;
  const bool negative = text.starts_with('-');
  if (!is_digits(std::string_view(text).substr(negative ? 1 : 0)))
    throw InputError(where, "'" + printable(text) + "' is not a whole number from " + range(least, most),
                     "give one, in digits");
  refuse_size(text, where, value ? *value < least : negative, least, most);
}

std::optional<std::int64_t> parse_optional_count(const Text& text, const char* flag, std::int64_t least,
                                                 std::int64_t most) {
  if (!text) return std::nullopt;
  return parse_count(*text, flag, least, most);
}

std::int64_t parse_count(const std::string& text, const Limit& limit) {
  return parse_count(text, std::string(flag_of(limit.field)), limit.least, limit.most);
}

std::optional<std::int64_t> parse_optional_count(const Text& text, const Limit& limit) {
  if (!text) return std::nullopt;
  return parse_count(*text, limit);
}

std::int64_t parse_tokens(const std::string& text, const Limit& limit) {
  const std::string where(flag_of(limit.field));
  const auto tokens = tokens_in(text);
  if (!tokens) {
    if (text.find_first_not_of("-0123456789") == std::string::npos) return parse_count(text, limit);
    throw InputError(where, "'" + printable(text) + "' is not a number of tokens",
                     "give digits, or such as 32k (32,768) or 4M (4,194,304)");
  }
  if (*tokens < static_cast<double>(limit.least) || *tokens > static_cast<double>(limit.most))
    refuse_size(text, where, *tokens < static_cast<double>(limit.least), limit.least, limit.most);
  return static_cast<std::int64_t>(*tokens);
}

bool same_number(std::string_view a, std::string_view b) {
  const auto number = real_number(a);
  return number && number == real_number(b);
}

double parse_percent(const std::string& text, const std::string& where) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool ends_in_percent = problem == std::errc() && end + 1 == text.data() + text.size() && *end == '%';
  if (!ends_in_percent || !std::isfinite(value) || value < 0 || value > 1000) {
    throw InputError(where, "'" + printable(text) + "' is not a percentage from 0% to 1000%",
                     "write it with its sign, such as 5%");
  }
  return value / 100;
}

bool parse_switch(const std::string& text, const char* flag) {
  if (text != "true" && text != "false")
    throw InputError(flag, "'" + printable(text) + "' is neither true nor false", "give one of them");
  return text == "true";
}

double parse_factor(const std::string& text, const char* flag, const char* remedy) {
  const auto value = real_number(text);
  if (!value || *value < 0 || *value >= 1)
    throw InputError(flag, "'" + printable(text) + "' is not a number in [0, 1)", remedy);
  return *value;
}

double parse_coefficient(const std::string& text, const char* flag, bool zero) {
  const auto value = real_number(text);
  if (!value || *value < 0 || (*value == 0 && !zero) || *value > kMostOfOptimizer)
    throw InputError(flag,
                     "'" + printable(text) + "' is not a " + (zero ? "number from 0" : "positive number") + " to 1e6",
                     zero ? "give it such as 0.1" : "give it such as 3e-4");
  return *value;
}

double parse_positive(const std::string& text, const char* flag, const char* remedy) {
  const auto value = real_number(text);
  if (!value || *value <= 0) throw InputError(flag, "'" + printable(text) + "' is not a positive number", remedy);
  return *value;
}

DType parse_number_type(const std::string& text, const char* flag, std::span<const DType> accepted) {
  std::string list;
  for (const DType t : accepted) {
    if (text == name(t)) return t;
    list += (list.empty() ? "" : t == accepted.back() ? " or " : ", ") + std::string(name(t));
  }
  for (int t = 0; t < kDTypes; ++t)
    if (text == name(static_cast<DType>(t))) throw InputError(flag, text + " is not taken here", "use " + list);
  throw InputError(flag, "'" + printable(text) + "' is no element type", "use " + list);
}

}  // namespace fsdp::cli
