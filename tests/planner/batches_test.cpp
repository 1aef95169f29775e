// The batch of a step, from the sizes that were chosen.
#include "planner/search/batches.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/input/error.h"

using namespace fsdp;

TEST_CASE("micro-batch, accumulation and global batch: any two decide") {
  const auto of = [&](std::optional<std::int64_t> micro, std::optional<std::int64_t> accum,
                      std::optional<std::int64_t> global) {
    return batches({micro, accum, global}, 8, 32);
  };
  using All = std::vector<Batch>;
  CHECK(of(2, 3, {}) == All{{2, 3}});
  CHECK(of(2, {}, 64) == All{{2, 4}});
  CHECK(of({}, 4, 64) == All{{2, 4}});
  CHECK(of(2, 4, 64) == All{{2, 4}});
  CHECK(of(2, {}, {}) == All{{2, 1}});
  CHECK(of({}, {}, 96) == All{{1, 12}, {2, 6}, {4, 3}, {12, 1}});
  CHECK(of({}, {}, {}).size() == 7);  // 1, 2, 4 ... 64
  CHECK(of({}, {}, {}).back() == Batch{64, 1});
  CHECK(of({}, 2, {}).front() == Batch{1, 2});
  const auto refused = [&](auto micro, auto accum, auto global, const char* words) {
    CHECK_THROWS_WITH_AS((void)of(micro, accum, global), doctest::Contains(words), InputError);
  };
  const std::optional<std::int64_t> none;
  refused(2, 2, 64, "64 sequences per step are not 2 per micro-batch x 2 micro-batches x 8 GPUs");
  refused(none, none, 65, "give a multiple of 8");
  refused(3, none, 64, "micro_batch: 3 does not divide the 8 sequences of each GPU");
  refused(none, 3, 64, "grad_accum: 3 does not divide");
  refused(0, none, none, "micro_batch: ");
  refused(none, -1, none, "grad_accum: ");
  CHECK(of(1, 4096, {}) == All{{1, 4096}});
  refused(none, 4097, none, "grad_accum: needs 4097 micro-batches per step, more than 4096");
  refused(std::int64_t{1} << 62, 4, 8, "are not");
  refused(1, none, std::int64_t{1} << 60,
          "global_batch: needs 144115188075855872 micro-batches per step, more than 4096");
  CHECK(of(65'536, none, none) == All{{65'536, 1}});
  refused(65'537, none, none, "micro_batch: needs 65,537 sequences at once, more than 65,536");
  refused(none, none, 8 * 4097, "global_batch: needs 4097 micro-batches per step, more than 4096");
  refused(none, 1, 8 * 65'537, "global_batch: needs 65,537 sequences at once");
  CHECK_THROWS_WITH_AS(
      (void)batches({65'536, none, none}, 8, 4097),
      doctest::Contains("micro_batch: 65536 sequences of 4097 tokens are more than 268,435,456 tokens"), InputError);
  CHECK_THROWS_WITH_AS((void)batches({}, 8, (1 << 24) + 1), doctest::Contains("seq_len: 16777217 tokens per sequence"),
                       InputError);
  CHECK(batches({}, 8, 1 << 24) == All{{1, 1}, {2, 1}, {4, 1}, {8, 1}, {16, 1}});  // what is searched stays within
}
