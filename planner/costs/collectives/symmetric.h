// NCCL's kernels for symmetric memory (windows that every rank registers, one NVLink domain; from NCCL 2.27) and its
// all-gather by copy engines (2.28). NCCL has a model of its own for the former, restated from src/sym_kernels.cc:
//
//   us = base + softplus(bus_bytes / bandwidth - 1)
//   bandwidth = smooth minimum of (blocks * bandwidth of an SM * multicast gain) and a peak
//
// with the fewest blocks within 2.5 % of the best time; between kernels each block counts 2.5 % against.
#pragma once

#include "models/cluster.h"
#include "planner/costs.h"

namespace fsdp {

struct SymmetricPrice {
  Seconds seconds;
  std::int64_t ctas = 0;
};

// A group of `ranks` inside one NVLink domain; `bytes` of the full tensor.
[[nodiscard]] SymmetricPrice symmetric_price(CollectiveKind, Bytes, std::int64_t ranks, const ClusterSpec&);

// An all-gather by copies between the GPUs' memories: no SM. The bus is the ring's (the same links); the base is an
// estimate: one barrier before and one after, each as long as a small symmetric kernel.
[[nodiscard]] SymmetricPrice copy_engine_price(Bytes, std::int64_t ranks, const ClusterSpec&);

}  // namespace fsdp
