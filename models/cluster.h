// What it runs on: a GPU, a node of them, and the fabric between nodes. Datasheet facts and measured ceilings, each with
// its source in the data file (models/gpus/*.json, models/clusters/*.json, embedded into the program at build time).
//
//   ClusterSpec c = load_cluster("dgx-h100", 64);      // 8 nodes of 8 H100
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/units.h"

namespace fsdp {

struct GpuSpec {
  std::string name;                          // "h100-sxm-80"
  FlopsPerSecond fp32, tf32, bf16, fp8;      // dense peaks; 0: no such unit
  Bytes memory;                              // as sold
  Bytes usable_memory;                       // as the runtime reports it
  BytesPerSecond memory_bandwidth;
  std::int64_t sms = 0;
  Bytes l2;
  BytesPerSecond host_link;                  // PCIe or C2C, one direction
  double matmul_efficiency = 0.75;           // best achievable fraction of the dense peak (MAMF)
  double attention_forward_efficiency = 0.5, attention_backward_efficiency = 0.4;   // of the dense peak
  double memory_efficiency = 0.85;           // of memory_bandwidth, fused memory-bound kernels
  friend bool operator==(const GpuSpec&, const GpuSpec&) = default;
};

struct ClusterSpec {
  std::string name;                          // "dgx-h100"
  GpuSpec gpu;
  std::int64_t gpus = 1;                     // asked for
  std::int64_t gpus_per_node = 8;
  BytesPerSecond intra_bus;                  // bus bandwidth of a large ring inside a node, per GPU
  BytesPerSecond inter_bus;                  // the same between nodes, per GPU (NIC share, one direction)
  Seconds intra_latency, inter_latency;      // per ring step
  Seconds collective_base_latency;           // per collective
  std::int64_t collective_sms = 0;           // SMs (CTAs) a ring collective holds
  Bytes fixed_memory;                        // context + communicators, per GPU, outside of the allocator
  bool host = false;                         // CPU ranks of this machine: costs come from calibration only
  [[nodiscard]] std::int64_t nodes() const { return (gpus + gpus_per_node - 1) / gpus_per_node; }
  [[nodiscard]] std::string digest() const;
  friend bool operator==(const ClusterSpec&, const ClusterSpec&) = default;
};

}  // namespace fsdp
