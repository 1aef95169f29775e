// This computer as a cluster of CPU ranks. Cores and memory are read at run time; rates stay 0 until they are
// calibrated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "models/cluster.h"

namespace fsdp {

// `gpus` 0: one rank per core that this process may use. Ranks share one node and its memory. More ranks than cores are
// allowed (up to 1024): results stay right, times do not.
[[nodiscard]] ClusterSpec host_cluster(std::int64_t gpus);

// Cores that this process may run on (containers and taskset narrow it).
[[nodiscard]] std::int64_t usable_cores();

// What this process may use of the machine, as /proc and the control groups say (versions 1 and 2: that of the process
// and all around it; the narrowest counts).
struct HostLimits {
  Bytes memory;                        // physical; 1 GiB where /proc does not say
  std::optional<Bytes> available;      // of it now, without swapping
  std::optional<Bytes> group_memory;   // the control groups' limit, where it is below `memory`
  std::optional<double> group_cores;   // the control groups' quota, in processors
  [[nodiscard]] Bytes usable() const;  // memory, or the groups' limit
};
// `root`: what stands for "/"; tests make one up.
[[nodiscard]] HostLimits host_limits(const std::string& root = "");

// For programs, once, before anything else: memory that is freed stays with the process, up to 1 GiB. A search predicts
// thousands of plans that need the same megabytes; asked of the system anew, they come page by page, which takes as
// long as half of a prediction.
void keep_freed_memory();

}  // namespace fsdp
