// Where the answer to a question about a growing size changes.
#include "planner/search/turning_point.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

using namespace fsdp;

TEST_CASE("the place where the answer changes is found, both its neighbours were asked, in few questions") {
  std::vector<std::int64_t> sizes;
  for (std::size_t count = 1; count <= 70; ++count) {
    sizes.push_back(static_cast<std::int64_t>(count));
    for (std::size_t turn = 1; turn <= count; ++turn)  // the first index with another answer; count: none
      for (const bool first : {true, false}) {
        CAPTURE(count);
        CAPTURE(turn);
        std::set<std::size_t> asked;
        int questions = 0;
        const auto found = turning_point(sizes, [&](std::size_t i) {
          REQUIRE(i < count);
          asked.insert(i);
          ++questions;
          return i < turn ? first : !first;
        });
        CHECK(questions <= 2 * std::log2(count) + 2);
        CHECK(asked.contains(0));
        if (turn == count) {
          CHECK_FALSE(found.has_value());
          CHECK(asked.contains(count - 1));
          continue;
        }
        REQUIRE(found.has_value());
        CHECK(*found == turn - 1);
        CHECK(asked.contains(turn));
        CHECK(asked.contains(turn - 1));
      }
  }
}

TEST_CASE("sizes double, not places in the list") {
  std::vector<std::int64_t> sizes{1, 2, 3, 4, 5, 6, 7};
  for (std::int64_t gpus = 8; gpus <= 1024; gpus += 8) sizes.push_back(gpus);
  std::vector<std::int64_t> asked;
  const auto found = turning_point(sizes, [&](std::size_t i) {  // only powers of two from 64 on
    asked.push_back(sizes[i]);
    return sizes[i] >= 64 && (sizes[i] & (sizes[i] - 1)) == 0;
  });
  REQUIRE(found.has_value());
  CHECK(sizes[*found + 1] == 64);
  CHECK(asked == std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 48, 56});
}

TEST_CASE("where answers go back and forth, the two neighbours still differ, as they were asked") {
  const std::vector<std::int64_t> sizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (std::uint32_t bits = 0; bits < 1U << 12U; ++bits) {
    const auto answer = [&](std::size_t i) { return (bits >> i & 1U) != 0; };
    const auto found = turning_point(sizes, answer);
    if (!found) continue;
    CHECK(answer(*found) == answer(0));
    CHECK(answer(*found + 1) != answer(0));
  }
}
