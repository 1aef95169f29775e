// This computer as a cluster of CPU ranks. Cores and memory are read at run time; rates stay 0 until they are
// calibrated.
#pragma once

#include <cstdint>

#include "models/cluster.h"

namespace fsdp {

// `gpus` 0: one rank per core that this process may use. Ranks share one node and its memory. More ranks than cores are
// allowed (up to 1024): results stay right, times do not.
[[nodiscard]] ClusterSpec host_cluster(std::int64_t gpus);

// Cores that this process may run on (containers and taskset narrow it).
[[nodiscard]] std::int64_t usable_cores();

}  // namespace fsdp
