// The cluster that a flag names.
#pragma once

#include <cstdint>
#include <string>

#include "models/cluster.h"

namespace fsdp::cli {

// As load_cluster. What the cluster's file leaves out goes to standard error, so that no assumption is silent; a GPU's
// name is refused with the command that writes a cluster of such GPUs.
[[nodiscard]] ClusterSpec named_cluster(const std::string& name, std::int64_t gpus = 0,
                                        const char* where = "--cluster");

}  // namespace fsdp::cli
