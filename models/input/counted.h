// A number with what it counts: "1 rank", "2 ranks".
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace fsdp {

// `what`: one of them, whose plural ends with an s.
template <std::integral T>
[[nodiscard]] std::string counted(T n, std::string_view what) {
  return std::to_string(n) + " " + std::string(what) + (n == 1 ? "" : "s");
}

}  // namespace fsdp
