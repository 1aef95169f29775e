// Rates at which a GPU or a CPU rank moves bytes and does arithmetic, from `Costs` and the datasheet. Shared by the
// files of costs/.
#pragma once

#include <string_view>

#include "models/cluster.h"
#include "models/dtype.h"
#include "planner/costs.h"

namespace fsdp {

// Device memory bytes per second that a good kernel reaches: the capacity that running operations share. 0 for CPU
// ranks.
[[nodiscard]] double memory_rate(const ClusterSpec&, const Costs&);

// Bytes per second of a copy between the device and pinned host memory, one way. Measured: 55.4 of 63 GB/s over PCIe 5
// (nvbandwidth: 55.6), 25 of 31.5 over PCIe 4, 359 of 450 over a chip-to-chip link (GH200).
[[nodiscard]] double host_copy_rate(const GpuSpec&);

// Flops per second of the units that multiply matrices in this type: bf16 and fp16 at the bf16 peak, fp32 at the fp32
// peak (PyTorch's default, float32_matmul_precision "highest", does not use TF32), fp64 at half of fp32 (datasheet
// ratio of data-center GPUs, tensor cores not counted). 0: not known (CPU ranks).
[[nodiscard]] double matrix_peak(DType, const GpuSpec&);

// The calibrated line where there is one, else the default; CPU ranks have no default.
[[nodiscard]] KernelRate copy_rate(const ClusterSpec&, const Costs&);
[[nodiscard]] KernelRate rate_or_default(const KernelRate& calibrated, std::string_view what, const ClusterSpec&,
                                         const Costs&);

// An operation that only moves `bytes` (read + written).
[[nodiscard]] Demand traffic_demand(double bytes, const KernelRate&, const ClusterSpec&, const Costs&);

// CPU ranks. How many ranks share a core, at least 1: with at most as many ranks as cores, each has its own. 1 where
// the cores are not known.
[[nodiscard]] double crowding(std::int64_t ranks, const Costs&);
// Turns a demand measured with `costs.collective_ranks` ranks at once into that of the cluster's ranks. Times grow with
// the ranks that share a core. A thread uses one of its rank's cores, so with fewer ranks than cores several run side
// by side. The delays of its threads change likewise.
void crowd(Demand&, bool collective, const ClusterSpec&, const Costs&);

// Throws InputError naming what `costs` lacks.
void require_calibrated(bool present, std::string_view what, const Costs&);

// A barrier of ranks in one NVLink domain: as long as a small kernel of NCCL's for symmetric memory, whose constants
// collectives/symmetric.cpp has.
[[nodiscard]] Seconds symmetric_barrier(const ClusterSpec&);

}  // namespace fsdp
