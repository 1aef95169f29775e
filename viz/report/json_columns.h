// Columns of a step as JSON text: times in nanoseconds, whole numbers.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp {

using Column = std::vector<std::int64_t>;

[[nodiscard]] inline std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Each value less the one before it.
[[nodiscard]] inline Column deltas(Column values) {
  std::adjacent_difference(values.begin(), values.end(), values.begin());
  return values;
}

// A JSON object, written column by column: a step has some 10^5 operations.
class JsonColumns {
 public:
  void add(std::string_view key, const Column& values) {
    begin(key);
    char digits[24];
    text_ += '[';
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i > 0) text_ += ',';
      text_.append(digits, std::to_chars(digits, digits + sizeof digits, values[i]).ptr);
    }
    text_ += ']';
  }
  void add(std::string_view key, std::int64_t value) {
    begin(key);
    text_ += std::to_string(value);
  }
  void add(std::string_view key, const nlohmann::ordered_json& value) {
    begin(key);
    text_ += value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  [[nodiscard]] std::string text() && { return std::move(text_) + "}"; }

 private:
  void begin(std::string_view key) {
    text_ += text_.empty() ? "{\"" : ",\"";
    text_ += key;
    text_ += "\":";
  }
  std::string text_;
};

}  // namespace fsdp
