// A node as NCCL sees it: what NCCL writes as XML where NCCL_TOPO_DUMP_FILE names a file. Its reader is a choice of
// source file: without pugixml, node_topology_absent.cpp refuses with the remedy.
//
//   const NodeTopology node = parse_node_topology(read_file("node.xml", "topology"), "node.xml");
//   node.gpus[0].links_to_switches                                      // 18 on a DGX H100
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/cluster.h"
#include "models/units.h"

namespace fsdp {

struct PciPath {                     // from a device up to its processor
  std::vector<std::string> bridges;  // bus ids, the nearest first; empty: right below the processor
  BytesPerSecond slot;               // of the device's own link, as PCIe carries it: 63 GB/s for x16 of generation 5
  BytesPerSecond narrowest;          // of all links, as NCCL counts them: 48 GB/s for the same
  bool known = true;                 // false: a link states no speed or width, and NCCL takes generation 3, x16
  bool slow = false;                 // the device's own link is of generation 1 or 2
};
struct NodeGpu {
  std::string bus;
  std::int64_t device = 0, compute_capability = 0;
  std::size_t cpu = 0;  // index into `cpus`
  PciPath path;
  std::int64_t links_to_switches = 0, links_to_cpu = 0;  // NVLinks
  std::map<std::string, std::int64_t> links_to_gpus;     // by bus id
};
struct NodeCard {  // a network card: the ports of one PCI device
  std::string name;
  std::size_t cpu = 0;
  PciPath path;
  BytesPerSecond speed;  // nominal, of its fastest ports together
};
struct NodeCpu {  // a NUMA node, as NCCL counts processors
  std::int64_t numa = 0;
  CpuVendor vendor = CpuVendor::intel;
  BytesPerSecond between;  // to another one, as NCCL counts it
};
struct NodeTopology {
  std::vector<NodeCpu> cpus;
  std::vector<NodeGpu> gpus;  // of the job that wrote the dump
  std::vector<NodeCard> cards;
};

inline constexpr std::int64_t kMaxTopologyBytes = std::int64_t{4} << 20;
inline constexpr int kMaxTopologyDepth = 64;

// Throws InputError for what is no such dump: malformed, too large, nested too deeply, of several machines, without a
// GPU.
[[nodiscard]] NodeTopology parse_node_topology(std::string_view xml, std::string_view where);

}  // namespace fsdp
