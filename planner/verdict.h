// Whether a plan fits its memory limit: the answer of a prediction, and what a search ranks plans by first.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace fsdp {

// Best first. fits: the limit holds what the allocator reserves when nothing limits it. tight: the limit holds that
// only with retries, or only with expandable segments.
enum class Verdict : std::uint8_t { fits, tight, does_not_fit };
inline constexpr std::array kVerdicts = {Verdict::fits, Verdict::tight, Verdict::does_not_fit};

// "fits", "tight", "does not fit".
[[nodiscard]] constexpr std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits: return "fits";
    case Verdict::tight: return "tight";
    case Verdict::does_not_fit: break;
  }
  return "does not fit";
}

}  // namespace fsdp
