// Sizes in bytes, for simulator/allocator/ alone.
#pragma once

#include <cstdint>

namespace fsdp {

inline constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// The smallest multiple of `to` that is not below `n`, for n >= 0 and to > 0.
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

}  // namespace fsdp
