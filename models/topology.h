// What NCCL's graph search finds on a cluster: how many channels a ring gets and how fast each runs. A channel is one
// ring (or tree) of its own and costs one CTA or two; together the channels fill the links.
//
//   Channels c = ring_channels(cluster, 8, 1);         // 8 ranks of one DGX H100: 12 channels of 30 GB/s, 24 CTAs
//
// The search walks a falling list of speeds s and keeps the pair (count, s) with the largest count * s that every GPU's
// links (inside a node) or every NIC (between nodes) can carry; then it duplicates channels. Source: NCCL 2.28
// src/graph/search.cc, topo.h, connect.cc.
#pragma once

#include <cstdint>

#include "models/cluster.h"

namespace fsdp {

inline constexpr double kGiga = 1e9;  // bytes per second in a GB/s, in which speeds of links are listed

struct Channels {
  std::int64_t count = 0;  // of the graph
  double speed = 0;        // of each, bytes per second
  std::int64_t ctas = 0;   // channels at execution: the CTAs that a large collective holds
};

// Rings of a group of `nodes` nodes (NVLink domains) with `ranks_per_node` of its ranks on each.
[[nodiscard]] Channels ring_channels(const ClusterSpec&, std::int64_t ranks_per_node, std::int64_t nodes);

// NVLink SHARP: one channel per GPU that heads a reduction; count 0: not available (needs Hopper or newer behind
// NVSwitch).
[[nodiscard]] Channels nvls_channels(const ClusterSpec&, std::int64_t ranks_per_node, std::int64_t nodes);

// What rings over so many ranks of a node carry: where each pair of GPUs has a link of its own, fewer use fewer links.
[[nodiscard]] BytesPerSecond intra_bus_of(const ClusterSpec&, std::int64_t ranks_per_node);

// GPUs of a node talk over NVLink, or over what is as fast.
[[nodiscard]] bool has_nvlink(const ClusterSpec&);
// They read and write one another's memory over it; of GPUs with a link between each two that is not known.
[[nodiscard]] bool has_symmetric_memory(const ClusterSpec&);

// The NICs of a node that a group with `ranks_per_node` ranks there can use, and what one carries.
[[nodiscard]] std::int64_t nics_of_group(const ClusterSpec&, std::int64_t ranks_per_node);
[[nodiscard]] BytesPerSecond nic_rate(const ClusterSpec&);

// Can counted_intra_bus say anything of these GPUs?
[[nodiscard]] bool links_known(const GpuSpec&);

// The rates that NCCL counts: intra_bus from the GPU's links; inter_bus from `nics` NICs of a nominal rate that `gpus`
// GPUs share.
[[nodiscard]] BytesPerSecond counted_intra_bus(const GpuSpec&, CpuVendor, std::int64_t gpus_per_node);
[[nodiscard]] BytesPerSecond counted_inter_bus(const GpuSpec&, BytesPerSecond nic, std::int64_t nics,
                                               std::int64_t gpus);

// What the rings that the search finds inside a node carry together where their narrowest link carries `narrowest`.
[[nodiscard]] BytesPerSecond ring_rate(const GpuSpec&, BytesPerSecond narrowest);

// The nominal rate of a NIC in the vendor's reference design, one for each GPU: 100 Gb/s before A100 (DGX-2), 200
// Gb/s for A100, 400 Gb/s from H100 on.
[[nodiscard]] BytesPerSecond reference_nic(const GpuSpec&);

// What a process holds outside of the allocator: 0.55 GiB of CUDA context with PyTorch's kernels; about 12 MiB of ring
// buffers per channel (NCCL issue 1685); 0.25 GiB of NVLink SHARP buffers (2 x 16 channels x 8 x 128 KiB x 8 heads).
// NCCL before 2.22 also connected the trees of every channel (src/init.cc), which go the other way between the same
// neighbours: as much as the rings again. That is counted of published runs alone (simulator/published/software).
[[nodiscard]] Bytes counted_fixed_memory(const ClusterSpec&);
// Of which what each further communicator takes again: the ring buffers.
[[nodiscard]] Bytes counted_communicator_memory(const ClusterSpec&);

}  // namespace fsdp
