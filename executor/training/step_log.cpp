#include "executor/training/step_log.h"

#include <algorithm>
#include <cmath>

#include "models/input/error.h"

namespace fsdp {

namespace {
constexpr std::size_t kFewest = 4, kOperations = std::size_t{1} << 21;  // 100 MiB of records
}

StepLog::StepLog(std::size_t candidates_from, std::size_t operations)
    : from_(candidates_from),
      most_(std::clamp(kOperations / std::max<std::size_t>(1, operations), kFewest, kMostKept)) {}

void StepLog::add(StepRecord record) {
  const std::size_t step = seconds_.size();
  seconds_.push_back(record.seconds);
  losses_.push_back(record.loss);
  if (step == 0) memory_ = record.memory;
  for (std::size_t i = 0; i < memory_.points.size() && step > 0; ++i) {
    MemoryPoint& most = memory_.points[i];
    most.at = std::max(most.at, record.memory.points.at(i).at);
    most.after = std::max(most.after, record.memory.points[i].after);
  }
  if (step >= from_ && (step - from_) % stride_ != 0) return;
  if (step <= from_) kept_.clear();
  record.memory = {};
  kept_.push_back({step, std::move(record)});
  if (kept_.size() < most_) return;
  stride_ *= 2;
  std::erase_if(kept_, [&](const Kept& k) { return (k.step - from_) % stride_ != 0; });
}

const StepLog::Kept& StepLog::nearest(std::span<const double> seconds, std::size_t from, double median) const {
  const Kept* best = nullptr;
  for (const Kept& k : kept_) {
    if (k.step < from || k.step >= seconds.size()) continue;
    if (best == nullptr || std::abs(seconds[k.step] - median) < std::abs(seconds[best->step] - median)) best = &k;
  }
  if (best == nullptr) throw MachineError("no record is kept of any measured step");
  return *best;
}

}  // namespace fsdp
