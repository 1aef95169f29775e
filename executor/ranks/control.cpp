#include "executor/ranks/control.h"

#include <fmt/format.h>

#include <new>

namespace fsdp::host {

void RunControl::fail(std::int64_t rank, std::int32_t op, const std::string& what) {
  const std::lock_guard lock(mutex_);
  if (failed_.load(std::memory_order_relaxed)) return;
  failed_rank_ = rank;
  failed_op_ = op;
  what_ = what.empty() ? "out of memory on this machine" : what;
  failed_.store(true, std::memory_order_release);
}

void RunControl::fail_with_exception(std::int64_t rank, std::int32_t op, const char* where) noexcept {
  const auto say = [&](const char* what) {
    try {
      fail(rank, op, fmt::format("rank {}, {}: {}", rank, where, what));
    } catch (...) {  // not even memory for that
      fail(rank, op, {});
    }
  };
  try {
    throw;
  } catch (const RankFailure& e) {
    fail(e.rank(), e.op(), e.what());
  } catch (const std::bad_alloc&) {
    say("out of memory on this machine");
  } catch (const std::exception& e) {
    say(e.what());
  } catch (...) {
    say("unknown exception");
  }
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
