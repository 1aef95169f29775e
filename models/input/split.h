// Text in parts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// What stands between the separators, at least one part: "a,,b" has three, "" has one.
[[nodiscard]] inline std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace fsdp
