// The GPUs that a run used, as a cluster: what its measurement names where the user has named none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/cluster.h"

namespace fsdp::cuda {

struct GpuFacts {  // as the driver states them
  std::string name;
  Bytes memory, l2;
  std::int64_t multiprocessors = 0;
  std::int64_t compute_capability = 0;  // 90 for sm_90
};

// `gpus` GPUs, of which one process sees `seen` (not empty). Rates and ceilings stay 0: the driver does not state them,
// so nothing can be predicted for this cluster. Where the GPUs are of several kinds the name lists all of them; the
// facts are those of the first.
[[nodiscard]] ClusterSpec cluster_of_gpus(const std::vector<GpuFacts>& seen, std::int64_t gpus,
                                          std::int64_t gpus_per_node);

// Throws InputError where `named` (--cluster) cannot be the cluster that the GPUs `found` are part of: another number
// of multiprocessors, or memory that differs by more than a tenth.
void check_names_these_gpus(const ClusterSpec& named, const ClusterSpec& found);

}  // namespace fsdp::cuda
