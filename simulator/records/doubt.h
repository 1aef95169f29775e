// How sure a prediction is: intervals that hold the measured value in 8 of 10 cases, and why they are as wide as they
// are. simulator/doubt/doubt.h makes them.
#pragma once

#include <string>
#include <vector>

namespace fsdp {

struct LikelyRange {
  double low = 0, high = 0;
  friend bool operator==(const LikelyRange&, const LikelyRange&) = default;
};

struct Doubt {
  LikelyRange step_time_s;          // 80 %
  LikelyRange peak_bytes;           // 80 %, of peak_total
  double usable_bytes = 0;          // of the device, 0: not known; a memory limit lies below it
  double out_of_memory = 0;         // probability that the device is too small
  std::vector<std::string> causes;  // the one that widens most first; at least one
  friend bool operator==(const Doubt&, const Doubt&) = default;
};

// Offloaded buffers against the memory of a node.
struct HostMemory {
  double needed_bytes = 0;     // of a node's ranks together
  double available_bytes = 0;  // 0: not known
  [[nodiscard]] bool fits() const { return available_bytes == 0 || needed_bytes <= available_bytes; }
  friend bool operator==(const HostMemory&, const HostMemory&) = default;
};

}  // namespace fsdp
