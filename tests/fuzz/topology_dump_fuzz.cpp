// NCCL's topology dumps from arbitrary bytes: an InputError, or a node whose numbers are finite; and a cluster file of
// it, where there is one, that is read back.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "models/catalog.h"
#include "models/catalog/node_topology.h"
#include "tests/fuzz/fuzz.h"

namespace {

// A GPU of the catalog with this compute capability; empty: none.
std::string_view gpu_of(std::int64_t capability) {
  switch (capability) {
    case 70: return "v100-sxm2-16";
    case 80: return "a100-pcie-80";
    case 89: return "rtx-4090";
    case 90: return "h100-sxm-80";
    case 100: return "b200";
    default: return {};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view xml(reinterpret_cast<const char*>(data), size);
  fsdp::fuzz::refuses_politely([&] {
    const fsdp::NodeTopology node = fsdp::parse_node_topology(xml, "fuzz");
    fsdp::fuzz::require(!node.gpus.empty(), "a node has a GPU");
    for (const fsdp::NodeGpu& g : node.gpus) {
      fsdp::fuzz::require(g.cpu < node.cpus.size(), "every GPU has a processor");
      fsdp::fuzz::require(std::isfinite(g.path.narrowest.count()) && g.path.narrowest.count() > 0, "links have a rate");
    }
    const std::string_view gpu = gpu_of(node.gpus.front().compute_capability);
    if (gpu.empty()) return;
    const std::string file = fsdp::cluster_file(gpu, node, "fuzz");
    const auto cluster = fsdp::cluster_from_json(file, "file");
    fsdp::fuzz::require(cluster.gpus_per_node == static_cast<std::int64_t>(node.gpus.size()),
                        "all GPUs are in the file");
  });
  return 0;
}
