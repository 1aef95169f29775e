// The hardware of a training run: a GPU, a node of them, and the fabric between nodes. It holds datasheet facts and
// measured ceilings, each with its source in the data file (models/gpus/*.json, models/clusters/*.json, embedded into
// the program at build time).
//
//   ClusterSpec c = load_cluster("dgx-h100", 64);      // 8 nodes of 8 H100
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/attention_kernel.h"
#include "models/price.h"
#include "models/units.h"

namespace fsdp {

// What GPUs of one node talk over where they have no NVLink: PCIe directly; the host's memory (drivers of GeForce cards
// refuse direct access); or another vendor's link, which NCCL's model does not know.
enum class PeerLink : std::uint8_t { pcie, host_memory, other };
inline constexpr int kPeerLinks = static_cast<int>(PeerLink::other) + 1;
[[nodiscard]] std::string_view name(PeerLink);  // "pcie", "host-memory", "other"

struct GpuSpec {
  std::string name;                      // "h100-sxm-80"
  FlopsPerSecond fp32, tf32, bf16, fp8;  // dense peaks; 0: no such unit
  Bytes memory;                          // as sold
  Bytes usable_memory;                   // as the runtime reports it
  BytesPerSecond memory_bandwidth;
  std::int64_t sms = 0;
  Bytes l2;
  BytesPerSecond host_link;  // PCIe or C2C, one direction
  BytesPerSecond nvlink;     // all NVLinks of a GPU, one direction, datasheet; 0: it has none
  PeerLink peer_link = PeerLink::pcie;
  BytesPerSecond mesh_link;  // to each other GPU of a node, one direction, where each pair has a link; 0: it has none
  // 70, 80, 89, 90, 100: selects NCCL's constants. GPUs of other vendors state the one nearest in age.
  std::int64_t compute_capability = 80;
  double matmul_efficiency = 0.75;     // best achievable fraction of the dense peak (MAMF)
  double fp8_matmul_efficiency = 0.7;  // the same of the fp8 peak
  // Fractions of the dense peak: FlashAttention-2, or the usual kernel.
  double attention_forward_efficiency = 0.5, attention_backward_efficiency = 0.4;
  // By AttentionKernel, where it was measured; elsewhere attention_ceiling (planner/costs/attention.h) decides.
  std::array<std::optional<AttentionCeiling>, kAttentionKernels> attention{};
  double sustained_clock = 0.95;    // clock under hours of random data over that of the ceilings' short benchmarks
  double memory_efficiency = 0.85;  // of memory_bandwidth, fused memory-bound kernels
  friend bool operator==(const GpuSpec&, const GpuSpec&) = default;
};

enum class CpuVendor : std::uint8_t { intel, amd, arm };  // NCCL's constants depend on it; an unknown CPU is Intel
inline constexpr int kCpuVendors = static_cast<int>(CpuVendor::arm) + 1;
[[nodiscard]] std::string_view name(CpuVendor);

struct ClusterSpec {
  std::string name;  // "dgx-h100"
  GpuSpec gpu;
  std::int64_t gpus = 1;  // asked for
  std::int64_t gpus_per_node = 8;
  // GPUs that NVLink joins over several nodes (GB200 NVL72: 72); nullopt: those of one node.
  std::optional<std::int64_t> nvlink_domain;
  // What NCCL's rings carry together, per GPU and direction: inside a node, channels times speed; between nodes, a
  // GPU's share of the node's NICs.
  BytesPerSecond intra_bus, inter_bus;
  std::optional<std::int64_t> nics_per_node;  // nullopt: one per GPU
  CpuVendor cpu = CpuVendor::intel;
  bool sharp = false;           // switches that reduce (InfiniBand SHARP with NCCL's CollNet plugin)
  double oversubscription = 1;  // bandwidth below a leaf switch over that of its uplinks; 1: a full fat tree
  bool rail_optimized = true;   // NIC i of every node on leaf switch i; false: all NICs of a node on one leaf
  // The Simple protocol's latency per ring step (inside a node, between nodes) and per collective, where they differ
  // from NCCL's own constants (3.4 us over NVLink, 14 us, 8.4 us); the other protocols' follow in proportion.
  std::optional<Seconds> intra_latency, inter_latency, collective_base_latency;
  // Most SMs (CTAs, channels) that a collective may hold, as NCCL_MAX_CTAS; nullopt: as many as NCCL takes.
  std::optional<std::int64_t> collective_sms;
  Bytes fixed_memory;                // context + one communicator, per GPU, outside of the allocator
  Bytes communicator_memory;         // of each further communicator, per GPU
  std::optional<Bytes> host_memory;  // of a node; nullopt: not known
  bool host = false;                 // CPU ranks of this computer: costs come from calibration only
  [[nodiscard]] std::int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
  [[nodiscard]] std::int64_t domain() const { return nvlink_domain.value_or(gpus_per_node); }  // NCCL's "node"
  [[nodiscard]] std::int64_t nics() const { return nics_per_node.value_or(gpus_per_node); }    // of a node
  [[nodiscard]] std::string digest() const;
  std::optional<Price> price;  // not part of the digest: no prediction of time or memory depends on it
  // What the cluster's file leaves out and this program filled in: a sentence each, with value and source. Not part of
  // the digest; the values are.
  std::vector<std::string> assumed;
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

// A cluster of which only the GPU and the fabric are known, as published runs state it. Assumed: NVSwitch inside nodes
// of more than one GPU where the GPU has NVLink, else PCIe; one NIC per GPU on a full, rail-optimized fabric without
// SHARP; hosts as these GPUs are sold with (A100: AMD, GB200: Arm, others Intel); GB200 in NVLink domains of 72.
// `fabric` is the nominal rate per GPU, one direction (400 Gb/s = BytesPerSecond(5e10)); nullopt, not known: 100 Gb/s
// before A100, 200 Gb/s for A100, 400 Gb/s from H100 on, the vendor's designs. Nodes need not be full. Throws
// InputError("cluster", ...) for counts below 1.
[[nodiscard]] ClusterSpec cluster_of(const GpuSpec&, std::int64_t gpus, std::int64_t gpus_per_node,
                                     std::optional<BytesPerSecond> fabric = {});

}  // namespace fsdp
