// Faults that the cuda backend must survive wherever its code runs: on a GPU, and on a runtime of our own. For files
// that define subject().
#pragma once

#include "models/input/error.h"
#include "tests/executor/conformance/conformance.h"

namespace fsdp::conformance {

inline void check_failing_rank_ends_all(std::int64_t ranks) {
  for (std::int32_t trial = 0; trial < 3; ++trial) {
    const std::int64_t victim = trial % ranks;
    const Failure f = failure_of({1, ranks}, [&](Device& dev) {
      dev.reserve_arena(1 << 16);
      dev.begin_step();
      const BufferView b = dev.allocate(G, 0, 4096);
      for (std::int32_t op = 0; op < 20; ++op) {
        if (op == 5 + trial && dev.rank() == victim) throw InputError("here", "no more");
        dev.all_gather(op, G, Communicator::shard, {}, b, 64, DType::f32);
      }
    });
    CHECK_MESSAGE(f.says("no more"), f.what);
    CHECK(f.rank == victim);
    CHECK(failure_of({1, ranks}, [](Device&) {}).what.empty());  // the next run works
  }
}

inline void check_throwing_host_function() {
  const Failure f = failure_of({1, 2}, [](Device& dev) {
    dev.reserve_arena(4096);
    dev.begin_step();
    const BufferView b = dev.allocate(G, 0, 1024);
    dev.launch(0, G, {}, [] {});
    dev.launch(1, G, {}, [rank = dev.rank()] {
      if (rank == 1) throw MachineError("the host function");
    });
    dev.all_gather(2, G, Communicator::shard, {}, b, 8, DType::f32);
    dev.synchronize();
  });
  CHECK_MESSAGE(f.says("the host function"), f.what);
  CHECK(f.rank == 1);
  CHECK(f.op == 1);
}

// Rank 1 does not come to operation 7.
[[nodiscard]] inline Failure failure_of_absent_rank(double watchdog_seconds) {
  return failure_of({1, 2},
                    [](Device& dev) {
                      dev.reserve_arena(4096);
                      dev.begin_step();
                      const BufferView b = dev.allocate(G, 0, 1024);
                      if (dev.rank() != 0) return;
                      dev.all_gather(7, G, Communicator::shard, {}, b, 8, DType::f32);
                      dev.synchronize();
                    },
                    {watchdog_seconds});
}

}  // namespace fsdp::conformance
