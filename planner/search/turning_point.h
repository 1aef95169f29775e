// Where the answer to a question about a growing size changes: doubling brackets the place, halving finds it.
//
//   const auto last = turning_point(sizes.size(), [&](std::size_t i) { return fits(sizes[i]); });
//   // fits(sizes[*last]) == fits(sizes[0]) != fits(sizes[*last + 1])
//
// Both neighbours were asked. Between sizes that were not asked the answer may change back and forth: what fits is the
// result of a search, which promises no order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>

namespace fsdp {

// nullopt: none of `count` (at least 1) that were asked, the last one among them, has another answer than the first.
// At most 2 log2(count) + 2 questions.
[[nodiscard]] inline std::optional<std::size_t> turning_point(std::size_t count,
                                                              const std::function<bool(std::size_t)>& ask) {
  const bool first = ask(0);
  std::size_t before = 0, after = 0;
  do {
    if (after + 1 == count) return std::nullopt;
    before = after;
    after = std::min(2 * after + 1, count - 1);
  } while (ask(after) == first);
  while (after - before > 1) {
    const std::size_t between = before + (after - before) / 2;
    (ask(between) == first ? before : after) = between;
  }
  return before;
}

}  // namespace fsdp
