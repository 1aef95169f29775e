// NCCL's own performance model: the algorithm and protocol it takes for a collective of some size, the time it expects
// and the CTAs it spends. NCCL chooses by this model, so the choice is right even where the time is not.
//
//   NcclModel model(cluster, 64, 8, {});                                      // 64 ranks, 8 on each node; makes tables
//   NcclChoice c = model.choose(CollectiveKind::all_gather, Bytes(1 << 30));  // ring, Simple, 3.05 ms
//
// time = latency + bytes / bandwidth per legal (algorithm, protocol); the smallest wins. Bytes are those of the full
// tensor; bandwidth is what nccl-tests calls algbw. Restated from NVIDIA/nccl 2.28.9 src/graph/tuning.cc and
// src/enqueue.cc; constants in nccl_table.h, channels from models/topology.h. Not in it: what a fabric loses
// (Costs::fabric_efficiency), launches and skew (Costs::collective_skew).
//
// Assumed where a cluster does not say: the host's network (no vendor latency), reductions other than averages with
// premultiplication, no fp8 reductions, all GPUs alike, trees of NCCL's balanced pattern.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/cluster.h"
#include "planner/costs.h"

namespace fsdp {

enum class NcclAlgorithm : std::uint8_t { tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat };
inline constexpr int kNcclAlgorithms = static_cast<int>(NcclAlgorithm::pat) + 1;
enum class NcclProtocol : std::uint8_t { ll, ll128, simple };
inline constexpr int kNcclProtocols = static_cast<int>(NcclProtocol::simple) + 1;
[[nodiscard]] std::string_view name(NcclAlgorithm);
[[nodiscard]] std::string_view name(NcclProtocol);

struct NcclChoice {
  NcclAlgorithm algorithm{};
  NcclProtocol protocol{};
  Seconds latency;        // the part that does not depend on bandwidth
  Seconds transfer;       // the part that does
  std::int64_t ctas = 0;  // each holds an SM for the whole collective
  [[nodiscard]] Seconds seconds() const { return latency + transfer; }
};

class NcclModel {
 public:
  // `pessimistic`: no LL128 over 16 nodes or more, where measured rings of middle sizes are up to twice slower than
  // LL128's line.
  NcclModel(const ClusterSpec&, std::int64_t ranks, std::int64_t ranks_per_node, bool pessimistic);

  // Arithmetic on the tables only: well below 100 ns.
  [[nodiscard]] NcclChoice choose(CollectiveKind, Bytes full_tensor) const;

  // One way by itself, whether or not it would be chosen; illegal ways take forever (infinity).
  [[nodiscard]] NcclChoice price(NcclAlgorithm, NcclProtocol, CollectiveKind, Bytes full_tensor) const;

  [[nodiscard]] std::int64_t nodes() const { return nodes_; }

 private:
  struct Way {
    NcclAlgorithm algorithm{};
    NcclProtocol protocol{};
    double latency = 0, seconds_per_byte = 0;
    std::int64_t ctas = 0;
  };
  struct Builder;
  [[nodiscard]] NcclChoice priced(const Way&, CollectiveKind, double bytes) const;

  std::array<std::vector<Way>, kCollectiveKinds> ways_;  // by CollectiveKind
  std::int64_t ranks_, nodes_;
  std::int64_t ring_channels_ = 0;
  bool slow_ring_ = false;            // 12 GB/s or less: Simple runs with half the threads
  double all_reduce_correction_ = 1;  // of the latency of Ring, Simple over nodes
};

}  // namespace fsdp
