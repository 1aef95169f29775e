// Bytes of a fuzzer as choices, and documents of which one number is at an edge.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fsdp::fuzz {

// A choice is one byte; where the bytes have ended it is 0.
class Choices {
 public:
  Choices(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  [[nodiscard]] std::size_t of(std::size_t count) { return at_ < size_ ? data_[at_++] % count : 0; }
  template <class Table>
  [[nodiscard]] const auto& of_table(const Table& table) {
    return table[of(std::size(table))];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_, at_ = 0;
};

// Numbers as a file may spell them: around every limit that there is, and around those of the types.
inline constexpr std::string_view kEdges[] = {"0",
                                              "1",
                                              "2",
                                              "3",
                                              "-1",
                                              "7",
                                              "64",
                                              "127",
                                              "128",
                                              "1000",
                                              "1024",
                                              "1025",
                                              "4096",
                                              "4097",
                                              "8192",
                                              "65535",
                                              "65536",
                                              "65537",
                                              "100000",
                                              "1000000",
                                              "1048576",
                                              "1048577",
                                              "3670016",
                                              "16777215",
                                              "16777216",
                                              "16777217",
                                              "2147483647",
                                              "2147483648",
                                              "4294967295",
                                              "4294967296",
                                              "1099511627776",
                                              "281474976710656",
                                              "4503599627370496",
                                              "9007199254740992",
                                              "9007199254740993",
                                              "1152921504606846976",
                                              "4611686018427387904",
                                              "9223372036854775807",
                                              "-9223372036854775808",
                                              "18446744073709551615",
                                              "18446744073709551616",
                                              "0.5",
                                              "1.0",
                                              "1e-300",
                                              "1e-30",
                                              "1e-9",
                                              "1e-4",
                                              "1e3",
                                              "1e15",
                                              "1e21",
                                              "1e24",
                                              "1e300",
                                              "1e308",
                                              "-1e308",
                                              "null",
                                              "true",
                                              "\"\"",
                                              "[]"};

// Where the numbers of a JSON text begin and how long they are; sizes with a unit in strings ("80GiB") count, too.
inline std::vector<std::pair<std::size_t, std::size_t>> numbers_of(std::string_view text) {
  constexpr std::string_view kDigits = "+-.0123456789eE";
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      const std::size_t end = text.find('"', i + 1);
      if (end == std::string_view::npos) break;
      std::size_t n = i + 1;
      while (n < end && text[n] >= '0' && text[n] <= '9') ++n;
      const bool size = n > i + 1 && n < end && (text[n] >= 'A' && text[n] <= 'u') && end - n <= 8;
      if (size) found.emplace_back(i + 1, n - i - 1);
      i = end + 1;
    } else if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
      const std::size_t end = std::min(text.find_first_not_of(kDigits, i), text.size());
      found.emplace_back(i, end - i);
      i = end;
    } else {
      ++i;
    }
  }
  return found;
}

// The same text with one number replaced.
inline std::string with_edge(std::string text, Choices& choose) {
  const auto numbers = numbers_of(text);
  if (numbers.empty()) return text;
  const std::size_t high = choose.of(256);  // long documents have more numbers than a byte has values
  const auto [at, size] = numbers[(high * 256 + choose.of(256)) % numbers.size()];
  text.replace(at, size, choose.of_table(kEdges));
  return text;
}

}  // namespace fsdp::fuzz
