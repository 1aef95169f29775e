#include "executor/host/control.h"

namespace fsdp::host {

void RunControl::fail(std::int64_t rank, std::int32_t op, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failed_rank_ = rank;
  failed_op_ = op;
  what_ = what;
  failed_.store(true, std::memory_order_release);
}

void RunControl::throw_if_failed() const {
  if (!failed()) return;
  const std::lock_guard lock(mutex_);
  throw RankFailure(failed_rank_, failed_op_, what_);
}

void RunControl::thread_starts() {
  const std::lock_guard lock(mutex_);
  ++alive_;
}

void RunControl::thread_ends() {
  const std::lock_guard lock(mutex_);
  if (--alive_ == 0) ended_.notify_all();
}

bool RunControl::wait_for_end(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, at_most, [&] { return alive_ == 0; });
}

}  // namespace fsdp::host
