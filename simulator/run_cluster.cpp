#include "simulator/run_cluster.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/catalog.h"

namespace fsdp {
namespace {

std::string generation(const std::string& gpu) { return gpu.substr(0, gpu.find('-')); }

// The catalog's node with this very GPU, else the one with a GPU of its generation, else the first there is.
ClusterSpec nearest_node(const std::string& gpu) {
  const ClusterSpec* best = nullptr;
  std::vector<ClusterSpec> nodes;
  for (const std::string& name : cluster_names())
    if (name != "host") nodes.push_back(load_cluster(name));
  for (const ClusterSpec& c : nodes)
    if (c.gpu.name == gpu && (!best || c.inter_bus > best->inter_bus)) best = &c;
  for (const ClusterSpec& c : nodes)
    if (!best && generation(c.gpu.name) == generation(gpu)) best = &c;
  return best ? *best : nodes.at(0);
}

}  // namespace

ClusterSpec cluster_of(const PublishedRun& run, std::vector<std::string>& assumptions) {
  const GpuSpec gpu = load_gpu(run.gpu, "gpu");
  ClusterSpec c = nearest_node(run.gpu);
  c.gpu = gpu;
  c.gpus = run.gpus.value_or(1);
  if (!run.gpus_per_node) assumptions.emplace_back("8 GPUs per node");
  c.gpus_per_node = run.gpus_per_node.value_or(8);
  // NCCL counts 12 GB/s for 100 Gb/s.
  if (run.fabric_gbps_per_gpu) c.inter_bus = BytesPerSecond(*run.fabric_gbps_per_gpu * 0.12e9);
  else if (c.gpus > c.gpus_per_node) assumptions.push_back(fmt::format("a fabric of {} per GPU, as {} has", human(c.inter_bus), c.name));
  c.name = fmt::format("{} x {}", c.gpus, run.gpu);
  return c;
}

}  // namespace fsdp
