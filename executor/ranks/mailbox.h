// Text exchange between ranks that are threads (Device::exchange).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/ranks/control.h"

namespace fsdp::host {

class Mailbox {
 public:
  Mailbox(std::int64_t ranks, std::shared_ptr<RunControl> control)
      : texts_(static_cast<std::size_t>(ranks)), control_(std::move(control)) {}
  std::vector<std::string> exchange(std::int64_t rank, const std::string& mine) {
    std::unique_lock lock(mutex_);
    texts_[static_cast<std::size_t>(rank)] = mine;
    if (++posted_ == texts_.size()) {
      complete_ = texts_;
      posted_ = 0;
      ++generation_;
      control_->tick();
      changed_.notify_all();
      return complete_;
    }
    const std::uint64_t seen = generation_;
    control_->wait_until(changed_, lock, [&] { return generation_ != seen; });
    return complete_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_, complete_;
  std::size_t posted_ = 0;
  std::uint64_t generation_ = 0;
  std::shared_ptr<RunControl> control_;
};

}  // namespace fsdp::host
