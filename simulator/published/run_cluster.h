// The cluster of a published run: its nodes, and the fabric that it states or that is assumed.
#pragma once

#include <string>
#include <vector>

#include "models/cluster.h"
#include "simulator/published/reading/published_runs.h"

namespace fsdp {

// Adds what it assumes. Throws InputError for GPUs of a node whose links nothing is known of. The run states its GPUs.
[[nodiscard]] ClusterSpec cluster_of_run(const PublishedRun&, const GpuSpec&, std::vector<std::string>& assumptions);

}  // namespace fsdp
