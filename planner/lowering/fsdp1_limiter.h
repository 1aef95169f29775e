// FSDP1's rate limiter (limit_all_gathers): how far the host may run ahead of the compute stream
// (docs/fsdp-order.md A2.6).
//
// Every free of a gathered parameter queues an event on the compute stream. Before every all-gather, also one that
// turns out to be unnecessary, the host takes the oldest event if there are at least two, and waits for it. One is
// taken at a time, so a queue that has grown stays long, and what is left at the end of a step is waited for in the
// next.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "planner/lowering/step/step_builder.h"

namespace fsdp {

class Fsdp1Limiter {
 public:
  explicit Fsdp1Limiter(bool enabled) : enabled_(enabled) {}

  // A step begins: the events left over belong to the step before it.
  void begin_step() {
    left_over_ = queue_.size();
    for (std::size_t i = 0; i < queue_.size(); ++i) queue_[i] = -1 - static_cast<std::int32_t>(i);
    waits_.clear();
  }

  void freed(const StepBuilder& b) {
    if (enabled_) queue_.push_back(b.last(Stream::compute));
  }

  void before_all_gather(StepBuilder& b, std::int16_t micro_batch) {
    if (!enabled_ || queue_.size() < kEvents) return;
    const std::int32_t event = queue_.front();
    queue_.pop_front();
    if (event < 0) waits_.push_back({b.next(), static_cast<std::size_t>(-1 - event)});
    b.host_wait({&event, 1}, micro_batch);
  }

  // A step has ended. Of steps that repeat, what this one leaves is what it found: then the events it found get their
  // places in the step before, and true is returned. Else the step is not yet a steady one.
  bool end_step(Step& step) {
    if (queue_.size() != left_over_) return false;
    for (const Wait& w : waits_) {
      Operation& op = step.ops[static_cast<std::size_t>(w.op)];
      const std::int32_t event = queue_[w.event];
      if (event >= 0) {
        step.waits[op.waits.begin] = -1 - event;
      } else {
        op.waits.count = 0;  // of two steps ago or more: it has finished as far as a Step can tell
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kEvents = 2;
  struct Wait {
    std::int32_t op;
    std::size_t event;
  };  // the host_wait for the event-th one left over

  const bool enabled_;
  std::deque<std::int32_t> queue_;  // operations of this step; -1 - i: the i-th event that the step before left
  std::size_t left_over_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace fsdp
