// The allocated bytes of a whole program, as a replay finds them, and where they peak.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// The same with blocks that wait for streams held as long as they can be (planner/program/stream_frees.h).
struct HeldMemory {
  MemoryTimeline init, first_step, steady_step;
  [[nodiscard]] std::int64_t peak() const { return std::max({init.peak(), first_step.peak(), steady_step.peak()}); }
  friend bool operator==(const HeldMemory&, const HeldMemory&) = default;
};

struct ProgramMemory {
  MemoryTimeline init, first_step, steady_step;
  std::int64_t peak = 0;                             // over all of them, on the device
  std::int64_t host_peak = 0;                        // host memory of what is offloaded, as it is pinned
  std::array<std::int64_t, kBufferKinds> at_peak{};  // what it is made of, by BufferKind
  int peak_step = 0;                                 // 0 init, 1 first, 2 steady
  std::optional<std::int32_t> peak_op = {};          // index of the operation in that step; empty: nothing is allocated
  // Of a program that our executor runs and whose blocks wait for streams (fsdp1): the most that may be held around
  // each operation. The timelines above are the least.
  std::optional<HeldMemory> most = {};
};

}  // namespace fsdp
