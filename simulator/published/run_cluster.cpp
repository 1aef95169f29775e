#include "simulator/published/run_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "models/topology.h"
#include "simulator/published/reading/cells.h"

namespace fsdp {
namespace {

// Gb/s per GPU between nodes; 0: as the vendor's reference designs have it. Notes may know what a node of the same
// machines has. A100 hosts with the reference design's 1,600 Gb/s are usually said to be such; what is silent is taken
// for the 400 Gb/s of AWS's p4d and p4de, which also is what the step times of both sources of silent rows (YaFSDP,
// torchtitan) agree with.
double assumed_fabric(const PublishedRun& run, const GpuSpec& gpu, std::int64_t node,
                      std::vector<std::string>& assumptions) {
  constexpr double kNode = 800;  // no single NIC has more
  for (std::size_t at = run.notes.find(" Gb/s"); at != std::string::npos; at = run.notes.find(" Gb/s", at + 1)) {
    std::size_t from = at;
    while (from > 0 && at - from < 9 && std::isdigit(static_cast<unsigned char>(run.notes[from - 1]))) --from;
    const double stated = from < at ? std::stod(run.notes.substr(from, at - from)) : 0;
    if (stated <= kNode || stated > 1e5) continue;
    assumptions.push_back(fmt::format("a fabric of {:g} Gb/s per node, as the notes say of such machines", stated));
    return stated / static_cast<double>(node);
  }
  if (gpu.name.starts_with("a100")) {
    assumptions.emplace_back("a fabric of 400 Gb/s per node");
    return 400.0 / static_cast<double>(node);
  }
  assumptions.emplace_back("a fabric as the vendor's reference designs have it, rail-optimized");
  return 0;
}

}  // namespace

// Nodes of 8 are built for rails. Smaller ones are blades of HPC systems, on fat trees and dragonflies.
ClusterSpec cluster_of_run(const PublishedRun& run, const GpuSpec& gpu, std::vector<std::string>& assumptions) {
  const std::int64_t with_rails = 8, node = run.gpus_per_node.value_or(with_rails);
  if (*run.gpus > 1 && node > 1 && !links_known(gpu))
    cannot("gpu", "what joins " + gpu.name + " inside a node is not known; plan with a cluster file that says it");
  if (!run.gpus_per_node) assumptions.emplace_back("8 GPUs per node");
  double gbps = run.fabric_gbps_per_gpu.value_or(0);
  if (gbps == 0 && *run.gpus > node) gbps = assumed_fabric(run, gpu, node, assumptions);
  std::optional<BytesPerSecond> fabric;
  if (gbps > 0) fabric = BytesPerSecond(gbps * 1e9 / 8);
  ClusterSpec cluster = cluster_of(gpu, *run.gpus, node, fabric);
  if (node < with_rails && cluster.domain() == node && *run.gpus > node) {
    cluster.rail_optimized = false;
    assumptions.push_back(fmt::format("nodes of {} GPUs on a fabric without rails, as HPC systems have them", node));
  }
  return cluster;
}

}  // namespace fsdp
