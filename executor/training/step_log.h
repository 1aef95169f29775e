// What a rank keeps of its steady steps, so that a run may have as many as it likes: of every one its time and its
// loss, whole records of a few. For training/ alone.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "executor/training/interpreter.h"

namespace fsdp {

class StepLog {
 public:
  struct Kept {
    std::size_t step = 0;  // index of the steady step
    StepRecord record;     // its memory moved away: see memory()
  };

  StepLog() = default;
  // Records are kept of steps from `candidates_from` on: of all of them while they are few, then of every second, every
  // fourth ... Before that, the record of the latest step. `operations`: of a step, which decides how many are few.
  StepLog(std::size_t candidates_from, std::size_t operations);
  void add(StepRecord);

  [[nodiscard]] std::size_t size() const { return seconds_.size(); }
  [[nodiscard]] bool empty() const { return seconds_.empty(); }
  [[nodiscard]] std::span<const double> seconds() const { return seconds_; }
  [[nodiscard]] std::span<const double> losses() const { return losses_; }
  // That of every step (RunJob refuses others), or, where blocks wait for streams, the most of any at each operation.
  [[nodiscard]] const MemoryTimeline& memory() const { return memory_; }
  [[nodiscard]] std::span<const Kept> kept() const { return kept_; }
  // Of the steps that are kept, [from, ...): the one whose time in `seconds` is nearest to `median`. The choice is the
  // same on ranks with the same `seconds`. Throws MachineError if none is kept.
  [[nodiscard]] const Kept& nearest(std::span<const double> seconds, std::size_t from, double median) const;

  // Every field, for `io` to write or to read (gather_results.cpp); `step(io, record)` does a record's.
  template <class Io, class Log, class Step>
  static void all_of(Io& io, Log& log, const Step& step) {
    io(log.from_);
    io(log.stride_);
    io(log.most_);
    io(log.seconds_);
    io(log.losses_);
    io(log.memory_.start);
    io(log.memory_.points);
    std::size_t kept = log.kept_.size();
    io(kept);
    if (kept != log.kept_.size()) log.kept_.resize(std::min(kept, kMostKept));
    for (auto& k : log.kept_) {
      io(k.step);
      step(io, k.record);
    }
  }

 private:
  static constexpr std::size_t kMostKept = 64;
  std::size_t from_ = 0, stride_ = 1, most_ = 0;
  std::vector<double> seconds_, losses_;
  MemoryTimeline memory_;
  std::vector<Kept> kept_;
};

}  // namespace fsdp
