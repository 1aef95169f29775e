// What a node's links are to a cluster: the numbers of a cluster file, each with where it comes from.
#pragma once

#include <optional>
#include <string>

#include "models/catalog/node_topology.h"
#include "models/cluster.h"

namespace fsdp {

struct NodeFacts {
  GpuSpec gpu;                    // the catalog's, with the node's own links
  std::string host_link, nvlink;  // sources; empty: as in the catalog
  bool has_nvlink = false;        // that rings can use
  BytesPerSecond intra_bus;
  std::string intra_source;
  std::optional<BytesPerSecond> card;  // of each network card; empty: the node shows none
  std::int64_t cards = 0;
  std::string card_source;
  std::string shared;  // what GPUs share, in words
};

[[nodiscard]] NodeFacts node_facts(const GpuSpec& catalog, const NodeTopology&, const std::string& where);

}  // namespace fsdp
