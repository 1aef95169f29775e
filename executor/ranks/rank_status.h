// Status of a rank: what it does now, readable by other ranks. It lies in memory of the process, or in memory that
// several processes map, so that errors can name what a killed or stopped rank did last. Written with plain atomic
// stores, never locked.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/program.h"

namespace fsdp::host {

struct RankStatus {
  enum Host : std::int32_t { busy, waiting, ended };
  enum State : std::int32_t { idle, waiting_for_event, kernel, collective };
  struct OnStream {
    std::atomic<std::int32_t> state{idle}, op{-1}, event{-1};  // event: the operation it waits for
  };
  std::atomic<std::int32_t> begun{0};    // steps, init included
  std::atomic<std::int32_t> issued{-1};  // last operation of this step that the host issued; -1: none yet
  std::atomic<std::int32_t> host{busy};
  std::array<OnStream, kStreams> streams;
};
static_assert(std::atomic<std::int32_t>::is_always_lock_free);

inline constexpr int kRuns = 3;  // from this blame on, a rank is at work and may end by itself
struct Doing {
  int blame = 0;  // higher: more likely the cause of a standstill
  std::int32_t op = -1;
  std::string what;                          // continues "rank 3 "
  std::vector<std::int64_t> waits_for = {};  // the ranks that a collective still lacks
};
[[nodiscard]] Doing doing(const RankStatus&);

}  // namespace fsdp::host
