// Time of a collective of one group that runs alone, prepared once for the group's shape: NCCL's model
// (costs/collectives/nccl.h), the part of it that the fabric leaves, the variants without NCCL's rings, and measured
// curves in place of all that.
//
//   CollectiveModel model(call, cluster, costs);           // call: ranks, ranks_per_node, nodes_apart
//   CollectivePrice p = model.price(CollectiveKind::all_gather, Bytes(400'000'000));
//
// Between nodes less than NCCL's bandwidth, by which it chooses, is there: the transfer takes 1/f of its time, with f
// the product of
//   fabric efficiency   Costs::fabric_efficiency up to 8 nodes, fabric_efficiency_at_scale from 16 on, between them on
//                       a line of log nodes;
//   shared NICs         groups side by side in a node use its NICs at once: NICs / (groups * NICs of a group), at most
//                       1;
//   oversubscription o  L nodes are below one leaf switch (64 ports, half of them down: 32 nodes rail-optimized,
//                       otherwise 32 / NICs per node). In a ring over N > L nodes placed at random a hop leaves its
//                       leaf with probability (N-L)/(N-1), and the uplinks carry 1/o: f = min(1, (N-1) / (o (N-L))).
//   no rails            flows between leaf switches meet on links although the tree is full: from 16 nodes (or L, if
//                       that is more) to 512 f falls to 0.38 on a line of log nodes; 1 on rail-optimized fabrics.
//
// A measured curve holds for its own shape inside the measured sizes, made monotone in log size. Beyond them, and for
// other shapes on the same side (one node, or several), the formula continues it: seconds(edge) * formula(x) /
// formula(edge). The nearest shape in log ranks is taken.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "planner/costs.h"
#include "planner/costs/collectives/nccl.h"

namespace fsdp {

struct CollectivePrice {
  Seconds seconds;        // with the skew
  std::int64_t ctas = 0;  // SMs held
};

class CollectiveModel {
 public:
  // Only the shape of the call counts; at least 2 ranks, on GPUs.
  CollectiveModel(const CollectiveCall& shape, const ClusterSpec&, const Costs&);
  [[nodiscard]] CollectivePrice price(CollectiveKind, Bytes) const;
  [[nodiscard]] std::int64_t nodes() const { return own_.nccl.nodes(); }

 private:
  struct Formula {
    NcclModel nccl;
    double fabric = 1;  // what is left of the bandwidth
    [[nodiscard]] double seconds(CollectiveKind, double bytes) const;
  };
  struct Measured {
    std::vector<CurvePoint> points;
    std::optional<Formula> at;  // of the measured group; nullopt: the group itself
  };
  [[nodiscard]] static Formula formula(const CollectiveCall&, const ClusterSpec&, const Costs&);
  [[nodiscard]] double measured_seconds(const Measured&, CollectiveKind, double bytes) const;

  Formula own_;
  std::array<std::optional<Measured>, kCollectiveKinds> measured_;
  Seconds skew_;
  CollectiveVariant variant_;
  std::int64_t ranks_;
  std::optional<ClusterSpec> cluster_;  // of the variants
};

// The factor f above, for tests and for reports; 1 inside a node.
[[nodiscard]] double fabric_factor(const CollectiveCall&, const ClusterSpec&, const Costs&);

}  // namespace fsdp
