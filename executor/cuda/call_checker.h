// Checks that ranks that are threads of one process issue the same collectives. NCCL does not check it: it would hang
// or mix up bytes. Non-blocking: each later rank compares its call with the first rank's. (Ranks that are processes
// compare their plans before they begin: executor/training/rank_run.cpp.)
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "executor/ranks/group.h"

namespace fsdp::cuda {

// Of one group.
class CallChecker {
 public:
  explicit CallChecker(std::size_t members) : next_(members, 0) {}
  // Checks the member's next collective. RankFailure if the first member to reach this one called another.
  void check(std::size_t member, std::int64_t rank, const host::CollectiveCall& call) {
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
    std::size_t seen = 0;  // members that have reached it
  };
  std::mutex mutex_;
  std::deque<First> firsts_;       // of collectives that not all members have reached
  std::vector<std::size_t> next_;  // by member: collectives that it has reached
  std::size_t gone_ = 0;
};

}  // namespace fsdp::cuda
