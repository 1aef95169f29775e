// Ranks that are threads of one process see that they issue the same collectives, which NCCL takes for granted: where
// they do not, it hangs or mixes up bytes. Nobody waits: whoever comes later compares with who came first. (Ranks that
// are processes have none of this: that they run one plan is seen before they begin, executor/training/rank_run.cpp.)
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "executor/ranks/group.h"

namespace fsdp::cuda {

class CallChecker {  // of one group
 public:
  explicit CallChecker(std::size_t members) : next_(members, 0) {}
  // The member's next collective. RankFailure if the first member that came to this one brought another.
  void see(std::size_t member, std::int64_t rank, const host::CollectiveCall& call) {
    const std::lock_guard lock(mutex_);
    const std::size_t index = next_[member]++ - gone_;
    if (index == firsts_.size()) firsts_.push_back({rank, call, 0});
    First& first = firsts_[index];
    const std::array<std::int64_t, 2> ranks = {first.rank, rank};
    const std::array<host::CollectiveCall, 2> calls = {first.call, call};
    host::check_same_call(ranks, calls);
    for (++first.seen; !firsts_.empty() && firsts_.front().seen == next_.size(); ++gone_) firsts_.pop_front();
  }

 private:
  struct First {
    std::int64_t rank = 0;
    host::CollectiveCall call;
    std::size_t seen = 0;  // members that have come
  };
  std::mutex mutex_;
  std::deque<First> firsts_;       // of collectives that not all members have come to
  std::vector<std::size_t> next_;  // by member: collectives it has come to
  std::size_t gone_ = 0;
};

}  // namespace fsdp::cuda
