// How the device's memory is handed out to a plan's program: by PyTorch's caching allocator, or from one block that
// holds every tensor at its offset.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "planner/costs.h"
#include "planner/program.h"
#include "planner/timeline.h"
#include "simulator/allocator/replay.h"

namespace fsdp {

// What the caching allocator replays: the program and when its operations ran. Buffers that wait for streams need the
// first step's times too.
class CachedAllocation {
 public:
  CachedAllocation(const Program&, const CostContext&, const Timeline& steady);  // all three outlive it
  [[nodiscard]] AllocatorPrediction with(std::int64_t capacity, bool expandable,
                                         AllocatorHistory* history = nullptr) const;
  [[nodiscard]] ReplayOptions options(std::int64_t capacity, bool expandable) const;  // valid as long as this object

 private:
  const Program& program_;
  const Timeline& steady_;
  Timeline first_;
  std::array<FixedAllocation, 2> cublas_;
};

// Bytes of the one block; nullopt: the caching allocator serves the plan. Where blocks wait for streams, each has
// its place for as long as it may wait.
[[nodiscard]] std::optional<std::int64_t> arena_of(const Program&, const CostContext&);

// What the allocator does on a device without a limit: in init, the first step, and steady steps until one begins as
// the one before did (three at most). In one block an allocation is a place in it, and one steady step is all.
[[nodiscard]] AllocatorHistory allocation_history(const Program&, const CostContext&, const Timeline& steady);

}  // namespace fsdp
