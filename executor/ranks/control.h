// State that the threads of one run share: the first failure and a progress counter. Every wait of the host backend
// goes through `wait_until`, so the failure of any rank ends every wait soon.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "executor/backend.h"

namespace fsdp::host {

class RunControl {
 public:
  RunControl() { what_.reserve(4096); }  // so that running out of memory can be reported
  // Keeps the first failure; later ones are consequences of it.
  void fail(std::int64_t rank, std::int32_t op, const std::string& what);
  // Records the exception being handled as "WHERE: what happened". A RankFailure keeps its own text.
  void fail_with_exception(std::int64_t rank, std::int32_t op, const char* where) noexcept;
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  void throw_if_failed() const;  // RankFailure: the first one
  void tick() { progress_.fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }

  // Threads of the run that have not ended; the run waits for them.
  void thread_starts();
  void thread_ends();
  [[nodiscard]] bool wait_for_end(std::chrono::milliseconds at_most);  // true: all have ended

  // Blocks until `ready()`; `lock` protects what it reads. Throws RankFailure when the run has failed. Polls for kSpin
  // before it sleeps, because most waits end within microseconds and waking a thread takes longer.
  template <class Ready>
  void wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Ready ready) const {
    for (const auto begin = std::chrono::steady_clock::now();
         !ready() && std::chrono::steady_clock::now() - begin < kSpin;) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
    while (true) {
      throw_if_failed();
      if (changed.wait_for(lock, kPoll, ready)) return;
    }
  }

 private:
  static constexpr std::chrono::milliseconds kPoll{50};
  static constexpr std::chrono::microseconds kSpin{20};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::atomic<bool> failed_{false};
  std::atomic<std::uint64_t> progress_{0};
  std::int64_t failed_rank_ = -1, alive_ = 0;
  std::int32_t failed_op_ = -1;
  std::string what_;
};

}  // namespace fsdp::host
