// Files of clusters to start from: those of the catalog, and one for any GPU of the catalog.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "models/catalog/topology_file.h"
#include "models/input/embedded.h"
#include "models/input/error.h"
#include "models/input/suggest.h"
#include "models/topology.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

Json gpu_json(const std::string& name) {
  Json gpu = Json::parse(embedded_file(fmt::format("gpus/{}.json", name)));
  gpu.erase("schema");
  return gpu;
}

std::string gigabytes(BytesPerSecond r) { return fmt::format("{:g}GB/s", r.count() / 1e9); }

std::string links(const GpuSpec& gpu) {
  if (gpu.nvlink.count() > 0) return "NVLink between all GPUs of a node, as NCCL counts it";
  if (gpu.mesh_link.count() > 0) return "the links between each two GPUs of a node";
  switch (gpu.peer_link) {
    case PeerLink::host_memory:
      return "through the host's memory: NCCL's log of 8 RTX 4090 on two processors (nccl-tests issue 307)";
    case PeerLink::other: break;  // NCCL's model does not know them
    case PeerLink::pcie: return "PCIe and the link between two processors, as NCCL counts them";
  }
  return {};
}

// A node of 8 such GPUs. Every number that the GPU's file does not hold is marked as assumed.
std::string file_of_gpu(const std::string& name) {
  const GpuSpec gpu = load_gpu(name, setting("cluster_file"));
  const ClusterSpec c = cluster_of(gpu, 8, 8);
  Json file = {
      {"schema", "fsdp-plan/cluster/1"}, {"name", "8x-" + name}, {"gpu", gpu_json(name)}, {"gpus_per_node", 8}};
  if (c.nvlink_domain) file["nvlink_domain"] = *c.nvlink_domain;
  const bool known = links_known(gpu);
  if (known) file["intra_bus"] = gigabytes(c.intra_bus);
  file["inter_bus"] = gigabytes(c.inter_bus);
  file["nics_per_node"] = 8;
  file["cpu"] = fsdp::name(c.cpu);
  file["fixed_memory"] = fmt::format("{}MiB", c.fixed_memory.count() >> 20);
  file["communicator_memory"] = fmt::format("{}MiB", c.communicator_memory.count() >> 20);
  const std::string measure = "; replace it by the bus bandwidth of all_gather_perf";
  file["source"] = {
      {"gpus_per_node", "assumed"},
      {"intra_bus", known ? "assumed: " + links(gpu) + measure + " on one node"
                          : "left out: add the bus bandwidth of all-gather on one node"},
      {"inter_bus", fmt::format("assumed: one NIC of {:g} Gb/s for each GPU{} over several whole nodes, divided by the "
                                "GPUs of a node",
                                reference_nic(gpu).count() * 8 / 1e9, measure)},
      {"cpu", "assumed: as these GPUs are usually sold"},
      {"fixed_memory", "estimate: a CUDA context with PyTorch's kernels and NCCL's buffers"},
      {"communicator_memory", "estimate: the ring buffers of each further communicator"},
      {"host_memory",
       "left out: add a node's memory, such as \"2048GiB\", to have offloaded plans checked against it"}};
  return file.dump(2) + "\n";
}

// The card of the reference design, where the node shows none.
std::string assumed_card(const GpuSpec& gpu) {
  return fmt::format(
      "assumed: the topology dump shows no network card; one NIC of {:g} Gb/s for each GPU; replace it by "
      "the bus bandwidth of all_gather_perf over several whole nodes, divided by the GPUs of a node",
      reference_nic(gpu).count() * 8 / 1e9);
}

}  // namespace

std::string cluster_file(std::string_view gpu_name, const NodeTopology& node, const std::string& where) {
  const std::string name(gpu_name);
  const NodeFacts facts = node_facts(load_gpu(name, setting("topology")), node, where);
  const auto gpus = static_cast<std::int64_t>(node.gpus.size());
  const std::int64_t cards = facts.card ? facts.cards : gpus;
  Json gpu = gpu_json(name);
  if (!facts.has_nvlink) gpu.erase("nvlink");
  else gpu["nvlink"] = gigabytes(facts.gpu.nvlink);
  gpu["host_link"] = gigabytes(facts.gpu.host_link);
  for (const auto& [field, source] : {std::pair{"nvlink", &facts.nvlink}, {"host_link", &facts.host_link}})
    if (!source->empty() && gpu["source"].is_object()) gpu["source"][field] = *source;
  ClusterSpec c = cluster_of(facts.gpu, gpus, gpus);
  c.intra_bus = facts.intra_bus;
  c.inter_bus = counted_inter_bus(facts.gpu, facts.card.value_or(reference_nic(facts.gpu)), cards, gpus);
  Json file = {{"schema", "fsdp-plan/cluster/1"},
               {"name", fmt::format("{}x-{}", gpus, name)},
               {"gpu", gpu},
               {"gpus_per_node", gpus}};
  if (c.nvlink_domain && facts.has_nvlink && *c.nvlink_domain % gpus == 0) file["nvlink_domain"] = *c.nvlink_domain;
  file["intra_bus"] = gigabytes(c.intra_bus);
  file["inter_bus"] = gigabytes(c.inter_bus);
  file["nics_per_node"] = cards;
  file["cpu"] = fsdp::name(node.cpus[node.gpus.front().cpu].vendor);
  file["fixed_memory"] = fmt::format("{}MiB", counted_fixed_memory(c).count() >> 20);
  file["source"] = {{"gpus_per_node", facts.shared},
                    {"intra_bus", facts.intra_source},
                    {"inter_bus", facts.card ? facts.card_source + ", as NCCL counts them" : assumed_card(facts.gpu)},
                    {"cpu", "topology dump"},
                    {"fixed_memory", "estimate: a CUDA context with PyTorch's kernels and NCCL's buffers"}};
  return file.dump(2) + "\n";
}

std::string cluster_file(std::string_view name) {
  if (name == "host")
    throw InputError(setting("cluster_file"), "\"host\" is this machine and has no file",
                     "name another cluster, such as dgx-h100");
  const std::string_view text = embedded_file(fmt::format("clusters/{}.json", name));
  if (!text.empty()) {
    Json cluster = Json::parse(text);
    if (Json& gpu = cluster["gpu"]; gpu.is_string()) gpu = gpu_json(gpu.get<std::string>());
    return cluster.dump(2) + "\n";
  }
  std::vector<std::string> known = gpu_names();
  if (std::find(known.begin(), known.end(), name) != known.end()) return file_of_gpu(std::string(name));
  const std::vector<std::string> clusters = cluster_names();
  known.insert(known.end(), clusters.begin(), clusters.end());
  throw InputError(setting("cluster_file"), "\"" + printable(name) + "\" is not in the catalog",
                   suggestion(name, known));
}

}  // namespace fsdp
