#include "planner/costs/collectives/model.h"

#include <algorithm>
#include <cmath>

#include "models/topology.h"
#include "planner/costs/collectives/symmetric.h"
#include "planner/costs/curve.h"

namespace fsdp {
namespace {

std::int64_t nodes_of(const CollectiveCall& call) {
  const std::int64_t per_node = std::clamp<std::int64_t>(call.ranks_per_node, 1, call.ranks);
  return (call.ranks + per_node - 1) / per_node;
}

double fabric_efficiency(double nodes, const Costs& costs) {
  const double t = std::clamp(std::log2(nodes) - 3, 0.0, 1.0);  // 0 at 8 nodes, 1 at 16
  return costs.fabric_efficiency + t * (costs.fabric_efficiency_at_scale - costs.fabric_efficiency);
}

double shared_nics(const CollectiveCall& call, const ClusterSpec& cluster) {
  const double all = static_cast<double>(nics_of_group(cluster, cluster.domain()));
  const double groups =
      std::max(1.0, std::floor(static_cast<double>(cluster.domain()) / static_cast<double>(call.ranks_per_node)));
  return std::min(1.0, all / (groups * static_cast<double>(nics_of_group(cluster, call.ranks_per_node))));
}

// Of the group's nodes, how many are below one leaf switch.
double below_leaf(const CollectiveCall& call, const ClusterSpec& cluster) {
  constexpr double kPortsDown = 32;
  const double nics = static_cast<double>(nics_of_group(cluster, cluster.gpus_per_node));
  const double below = (cluster.rail_optimized ? kPortsDown : kPortsDown / nics) /
                       static_cast<double>(std::max<std::int64_t>(1, call.nodes_apart)) *
                       static_cast<double>(cluster.gpus_per_node) / static_cast<double>(cluster.domain());
  return std::max(1.0, std::floor(below));
}

double through_uplinks(double nodes, double leaf, double oversubscription) {
  return nodes <= leaf ? 1 : std::min(1.0, (nodes - 1) / (oversubscription * (nodes - leaf)));
}

// Without rails the flows between leaf switches meet on links, though there are enough of them: routes are fixed by
// the destination. Measured on a full tree of 512 nodes, 16 below a leaf switch.
double without_rails(double nodes, double leaf) {
  constexpr double kMeasuredLeaf = 16, kMeasuredNodes = 512, kMeasuredPart = 0.38;
  const double from = std::max(kMeasuredLeaf, leaf);
  const double t = std::clamp(std::log2(nodes / from) / std::log2(kMeasuredNodes / from), 0.0, 1.0);
  return 1 - t * (1 - kMeasuredPart);
}

// Curves of a kind that inform this shape, the nearest first.
const CollectiveCurve* nearest(CollectiveKind kind, const CollectiveCall& call,
                               const std::vector<CollectiveCurve>& curves) {
  const CollectiveCurve* best = nullptr;
  double least = 0;
  for (const CollectiveCurve& c : curves) {
    const bool one_node = c.ranks <= c.ranks_per_node;
    if (c.kind != kind || c.points.empty() || one_node != (nodes_of(call) == 1)) continue;
    const auto apart = [](std::int64_t a, std::int64_t b) {
      return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
    };
    const double distance = apart(c.ranks, call.ranks) + apart(c.ranks_per_node, call.ranks_per_node);
    if (best && distance >= least) continue;
    best = &c;
    least = distance;
  }
  return best;
}

}  // namespace

double fabric_factor(const CollectiveCall& call, const ClusterSpec& cluster, const Costs& costs) {
  const std::int64_t nodes = nodes_of(call);
  if (nodes <= 1) return 1;
  const double n = static_cast<double>(nodes), leaf = below_leaf(call, cluster);
  return fabric_efficiency(n, costs) * shared_nics(call, cluster) * through_uplinks(n, leaf, cluster.oversubscription) *
         (cluster.rail_optimized ? 1 : without_rails(n, leaf));
}

double CollectiveModel::Formula::seconds(CollectiveKind kind, double bytes) const {
  const NcclChoice c =
      nccl.choose(kind, Bytes(static_cast<std::int64_t>(std::min(bytes, 0x1p62))));  // sizes of curves are free
  return c.latency.count() + c.transfer.count() / fabric;
}

CollectiveModel::Formula CollectiveModel::formula(const CollectiveCall& call, const ClusterSpec& cluster,
                                                  const Costs& costs) {
  return {NcclModel(cluster, call.ranks, call.ranks_per_node, costs.pessimistic_collectives),
          fabric_factor(call, cluster, costs)};
}

CollectiveModel::CollectiveModel(const CollectiveCall& shape, const ClusterSpec& cluster, const Costs& costs)
    : own_(formula(shape, cluster, costs)),
      skew_(costs.collective_skew),
      variant_(costs.collective_variant),
      ranks_(shape.ranks) {
  if (own_.nccl.nodes() > 1 || !has_symmetric_memory(cluster)) variant_ = CollectiveVariant::nccl;
  if (variant_ != CollectiveVariant::nccl) cluster_ = cluster;
  for (const CollectiveKind kind :
       {CollectiveKind::all_gather, CollectiveKind::reduce_scatter, CollectiveKind::all_reduce}) {
    auto& measured = measured_[static_cast<std::size_t>(kind)];
    // Curves without nodes are of one node.
    std::vector<CollectiveCurve> single;
    if (const auto& points = collective_curve(kind, costs); !points.empty() && costs.collective_ranks)
      single.push_back({kind, *costs.collective_ranks, *costs.collective_ranks, points});
    const CollectiveCurve* curve = nearest(kind, shape, costs.collective_curves);
    if (!curve) curve = nearest(kind, shape, single);
    if (!curve) continue;
    measured = Measured{curve->points, {}};
    if (curve->ranks != shape.ranks || curve->ranks_per_node != std::min(shape.ranks_per_node, shape.ranks))
      measured->at = formula({kind, {}, curve->ranks, curve->ranks_per_node}, cluster, costs);
  }
}

double CollectiveModel::measured_seconds(const Measured& m, CollectiveKind kind, double bytes) const {
  const Formula& at = m.at ? *m.at : own_;
  const double edge = std::clamp(bytes, m.points.front().size, m.points.back().size);
  double seconds = m.points.size() == 1 ? m.points[0].seconds : interpolate(m.points, edge);
  if (edge != bytes) seconds *= at.seconds(kind, bytes) / at.seconds(kind, edge);
  if (m.at) seconds *= own_.seconds(kind, bytes) / at.seconds(kind, bytes);
  return seconds;
}

CollectivePrice CollectiveModel::price(CollectiveKind kind, Bytes bytes) const {
  const auto& measured = measured_[static_cast<std::size_t>(kind)];
  if (variant_ != CollectiveVariant::nccl) {
    const bool copies = variant_ == CollectiveVariant::copy_engine && kind == CollectiveKind::all_gather;
    const SymmetricPrice p =
        copies ? copy_engine_price(bytes, ranks_, *cluster_) : symmetric_price(kind, bytes, ranks_, *cluster_);
    return {p.seconds + skew_, p.ctas};
  }
  const NcclChoice c = own_.nccl.choose(kind, bytes);
  const double seconds = measured ? measured_seconds(*measured, kind, static_cast<double>(bytes.count()))
                                  : c.latency.count() + c.transfer.count() / own_.fabric;
  return {Seconds(seconds) + skew_, c.ctas};
}

}  // namespace fsdp
