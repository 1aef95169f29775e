// What both interpreters return: when each operation ran, and how much memory was allocated around it.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp {

struct Span {  // of one operation, by its index in the Step; seconds from the Step's start
  double start = 0, end = 0;
};
struct Timeline {
  std::vector<Span> spans;  // spans[i] belongs to ops[i]; host-only operations have start == end
  double duration = 0;      // period of a steady step
  std::vector<double>
      issued;  // when the host issued ops[i], seconds from the Step's start (negative: it ran ahead); simulated only
};

// Bytes allocated as the host passes each operation: `at` just before it issues ops[i] (after its allocations),
// `after` when its frees are done.
struct MemoryPoint {
  std::int64_t at = 0, after = 0;
  friend bool operator==(const MemoryPoint&, const MemoryPoint&) = default;
};
struct MemoryTimeline {
  std::vector<MemoryPoint> points;
  std::int64_t start = 0;  // allocated before the first operation
  [[nodiscard]] std::int64_t peak() const {
    std::int64_t p = start;
    for (const MemoryPoint& m : points) p = m.at > p ? m.at : p;
    return p;
  }
  friend bool operator==(const MemoryTimeline&, const MemoryTimeline&) = default;
};

}  // namespace fsdp
