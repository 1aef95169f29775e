// Cluster files from arbitrary text: an InputError, or a cluster on which every collective takes a time.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "models/catalog.h"
#include "planner/costs.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::int64_t gpus : {0, 1, 6, 64}) {
    fsdp::fuzz::refuses_politely([&] {
      const fsdp::ClusterSpec cluster = fsdp::cluster_from_json(text, "fuzz", gpus);
      fsdp::fuzz::require(gpus == 0 || cluster.gpus == gpus, "a cluster has as many GPUs as asked for");
      fsdp::fuzz::require(fsdp::cluster_from_json(text, "fuzz", gpus) == cluster, "a file says one cluster");
      const fsdp::Costs costs = fsdp::default_costs(cluster);
      for (int kind = 0; kind < fsdp::kCollectiveKinds; ++kind)
        for (const double bytes : {1.0, 1e6, 1e10}) {
          const fsdp::CollectiveCall call{static_cast<fsdp::CollectiveKind>(kind), fsdp::Bytes(bytes), cluster.gpus,
                                          std::min(cluster.gpus, cluster.gpus_per_node), 1};
          const double seconds = fsdp::collective_demand(call, cluster, costs).alone.count();
          fsdp::fuzz::require(std::isfinite(seconds) && seconds >= 0, "a collective takes a time");
        }
    });
  }
  return 0;
}
