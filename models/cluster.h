// What it runs on: a GPU, a node of them, and the fabric between nodes. Datasheet facts and measured ceilings, each
// with its source in the data file (models/gpus/*.json, models/clusters/*.json, embedded into the program at build
// time).
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
#include "models/units.h"

namespace fsdp {

struct GpuSpec {
  std::string name;                      // "h100-sxm-80"
  FlopsPerSecond fp32, tf32, bf16, fp8;  // dense peaks; 0: no such unit
  Bytes memory;                          // as sold
  Bytes usable_memory;                   // as the runtime reports it
  BytesPerSecond memory_bandwidth;
  std::int64_t sms = 0;
  Bytes l2;
  BytesPerSecond host_link;  // PCIe or C2C, one direction
  BytesPerSecond nvlink;     // all NVLinks of a GPU, one direction, datasheet; 0: none
  std::int64_t compute_capability =
      80;  // 70, 80, 89, 90, 100: which of NCCL's constants hold. Others' GPUs: the nearest in age
  double matmul_efficiency = 0.75;     // best achievable fraction of the dense peak (MAMF)
  double fp8_matmul_efficiency = 0.7;  // the same of the fp8 peak
  double attention_forward_efficiency = 0.5,
         attention_backward_efficiency = 0.4;  // of the dense peak: FlashAttention-2, or the usual kernel
  std::array<AttentionCeiling, kFusedAttentionKernels> attention{};  // by AttentionKernel, where it was measured
  double sustained_clock =
      0.95;  // clock under hours of random data over that of the short benchmarks behind the ceilings
  double memory_efficiency = 0.85;  // of memory_bandwidth, fused memory-bound kernels
  friend bool operator==(const GpuSpec&, const GpuSpec&) = default;
};

enum class CpuVendor : std::uint8_t {
  intel,
  amd,
  arm
};  // NCCL's constants ask; what hosts are not known counts as Intel

struct ClusterSpec {
  std::string name;  // "dgx-h100"
  GpuSpec gpu;
  std::int64_t gpus = 1;  // asked for
  std::int64_t gpus_per_node = 8;
  std::int64_t nvlink_domain = 0;  // GPUs that NVLink joins, over several hosts (GB200 NVL72: 72); 0: a node's
  BytesPerSecond intra_bus;        // what NCCL's rings inside a node carry together, per GPU: channels times speed
  BytesPerSecond
      inter_bus;  // what its rings between nodes carry, per GPU: a GPU's share of the node's NICs, one direction
  std::int64_t nics_per_node = 0;  // 0: one per GPU
  CpuVendor cpu = CpuVendor::intel;
  bool sharp = false;           // switches that reduce (InfiniBand SHARP with NCCL's CollNet plugin)
  double oversubscription = 1;  // bandwidth below a leaf switch over that of its uplinks; 1: a full fat tree
  bool rail_optimized = true;   // NIC i of every node on leaf switch i; false: all NICs of a node on one leaf
  // Simple protocol's latency per ring step and per collective, where this machine's differ from NCCL's own constants;
  // the other protocols' follow in proportion. 0: NCCL's (3.4 us over NVLink, 14 us between nodes, 8.4 us per
  // collective).
  Seconds intra_latency, inter_latency, collective_base_latency;
  std::int64_t collective_sms =
      0;               // most SMs (CTAs, channels) a collective may hold, as NCCL_MAX_CTAS; 0: as many as NCCL takes
  Bytes fixed_memory;  // context + communicators, per GPU, outside of the allocator
  bool host = false;   // CPU ranks of this machine: costs come from calibration only
  [[nodiscard]] std::int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
  [[nodiscard]] std::int64_t domain() const {
    return nvlink_domain > 0 ? nvlink_domain : gpus_per_node;
  }  // NCCL's "node"
  [[nodiscard]] std::string digest() const;
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

// A cluster of which only the GPU and the fabric are known, as published runs state it. Assumed: NVSwitch inside nodes
// of more than one GPU where the GPU has NVLink, else PCIe; one NIC per GPU on a full, rail-optimized fabric without
// SHARP; hosts as these GPUs are sold with (A100: AMD, GB200: Arm, others Intel); GB200 in NVLink domains of 72.
// `fabric` is the nominal rate per GPU, one direction (400 Gb/s = BytesPerSecond(5e10)); 0, unknown: 200 Gb/s for A100
// and older, 400 Gb/s from H100 on, the vendor's reference designs. Nodes need not be full. Throws
// InputError("cluster", ...) for counts below 1.
[[nodiscard]] ClusterSpec cluster_of(const GpuSpec&, std::int64_t gpus, std::int64_t gpus_per_node,
                                     BytesPerSecond fabric = {});

}  // namespace fsdp
