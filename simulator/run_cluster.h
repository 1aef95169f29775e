// The machine of a published run. `assumptions` grows by what the row does not say. Throws InputError("gpu", ...) for an unknown GPU.
#pragma once

#include <string>
#include <vector>

#include "models/cluster.h"
#include "simulator/published_runs.h"

namespace fsdp {

[[nodiscard]] ClusterSpec cluster_of(const PublishedRun&, std::vector<std::string>& assumptions);

}  // namespace fsdp
