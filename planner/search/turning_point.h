// Where the answer to a question about a growing size changes: doubling brackets the place, halving finds it.
//
//   const auto last = turning_point(sizes, [&](std::size_t i) { return fits(sizes[i]); });
//   // fits(sizes[*last]) == fits(sizes[0]) != fits(sizes[*last + 1])
//
// Both neighbours were asked. Between sizes that were not asked the answer may change back and forth: what fits is the
// result of a search, which promises no order. Sizes double, not places in the list: of numbers of GPUs that are powers
// of two are asked first, which most dimensions divide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace fsdp {

// nullopt: none of `sizes` (at least one, ascending, positive) that were asked, the last one among them, has another
// answer than the first. At most 2 log2(n) + 2 questions of sizes 1 to n.
[[nodiscard]] inline std::optional<std::size_t> turning_point(std::span<const std::int64_t> sizes,
                                                              const std::function<bool(std::size_t)>& ask) {
  const bool first = ask(0);
  std::size_t before = 0, after = 0;
  do {
    if (after + 1 == sizes.size()) return std::nullopt;
    before = after++;
    while (after + 1 < sizes.size() && sizes[after + 1] - sizes[before] <= sizes[before]) ++after;
  } while (ask(after) == first);
  while (after - before > 1) {
    const std::size_t between = before + (after - before) / 2;
    (ask(between) == first ? before : after) = between;
  }
  return before;
}

}  // namespace fsdp
