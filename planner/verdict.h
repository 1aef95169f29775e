// Whether a plan fits its memory limit: the answer of a prediction, and what a search ranks plans by first.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/input/names.h"

namespace fsdp {

// Best first. fits: the limit holds what the allocator reserves when nothing limits it. tight: the limit holds that
// only with retries, or only with expandable segments.
enum class Verdict : std::uint8_t { fits, tight, does_not_fit };
inline constexpr int kVerdicts = static_cast<int>(Verdict::does_not_fit) + 1;

[[nodiscard]] constexpr std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits: return "fits";
    case Verdict::tight: return "tight";
    case Verdict::does_not_fit: return "does not fit";
  }
  return {};
}
static_assert(names_all<Verdict>(name, kVerdicts));

}  // namespace fsdp
