// Collectives as rings. A group of n ranks, p of them on each of N = n / p nodes, moves a full tensor of B bytes.
//
// Every rank sends B/n bytes in each of n-1 steps (all-reduce: 2(n-1) steps, a reduce-scatter and an all-gather), so the bytes
// that leave a rank are  wire = B (n-1)/n  (twice that for all-reduce), and
//
//   seconds = base + (steps - k) intra_latency + k inter_latency + wire / bus,      k = N-1 steps cross nodes (all-reduce 2(N-1))
//
// which is NCCL's own model of a ring (NCCL tuning.cc: latencies per hop, bus bandwidth per channel times channels).
//
// The bus, N = 1: intra_bus, what a large ring reaches over the links inside a node.
// The bus, N > 1: NCCL runs (at least) p rings side by side and lets each leave a node through another rank's NIC. A ring carries
// bus/p. So a rank's NIC carries bus/p <= inter_bus, and its links inside the node carry the other p-1 rings:
// bus (p-1)/p <= intra_bus.   Hence   bus = min(p inter_bus, intra_bus p/(p-1)),  inter_bus alone for p = 1.
// (8 x H100 per node: min(8 x 48, 360 x 8/7) = 384 GB/s, NCCL's figure for its 8 x 48 channels.)
// Groups that share a node (replicas of other shards) use other ranks' NICs and do not meet.
//
// A large all-reduce is as good over a ring; a small one goes through a double binary tree, whose latency grows with log2 N:
//   seconds = base + 2 ((p-1) intra_latency + floor(log2 N) inter_latency) + 2 B / (0.92 bus)           (same source)
//
// What it takes from others while it runs: collective_sms multiprocessors, held; device memory traffic of 2 bytes (all-gather:
// one read, one write) or 3 (reductions: two reads, one write) per wire byte (nccl issue 1428: 2 to 3 times the bus bandwidth);
// and its links.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "models/topology.h"
#include "planner/costs.h"
#include "planner/costs/curve.h"
#include "planner/costs/rates.h"

namespace fsdp {

namespace {

struct Ring {
  double n, p, nodes;
  double bus;   // bytes per second out of each rank
  double wire;  // bytes out of each rank
};

Ring ring_of(const CollectiveCall& call, const ClusterSpec& cluster) {
  const std::int64_t per_node = std::clamp<std::int64_t>(call.ranks_per_node, 1, call.ranks);
  Ring r{};
  r.n = static_cast<double>(call.ranks);
  r.p = static_cast<double>(per_node);
  r.nodes = static_cast<double>((call.ranks + per_node - 1) / per_node);
  if (r.nodes == 1) r.bus = cluster.intra_bus.count();
  else if (r.p == 1) r.bus = cluster.inter_bus.count();
  else r.bus = std::min(r.p * cluster.inter_bus.count(), cluster.intra_bus.count() * r.p / (r.p - 1));
  r.wire = static_cast<double>(call.bytes.count()) * (r.n - 1) / r.n * (call.kind == CollectiveKind::all_reduce ? 2 : 1);
  return r;
}

double formula_seconds(const CollectiveCall& call, const Ring& r, const ClusterSpec& cluster) {
  const auto or_nccl = [](Seconds given, double usual) { return given.count() > 0 ? given.count() : usual; };
  const double intra = or_nccl(cluster.intra_latency, 3.4e-6), inter = or_nccl(cluster.inter_latency, 14e-6);
  const double passes = call.kind == CollectiveKind::all_reduce ? 2 : 1;
  const double crossings = passes * (r.nodes - 1);
  const double ring = (passes * (r.n - 1) - crossings) * intra + crossings * inter + r.wire / r.bus;
  double best = ring;
  if (call.kind == CollectiveKind::all_reduce && r.nodes > 1) {
    const double depth = std::floor(std::log2(r.nodes));
    const double tree = 2 * ((r.p - 1) * intra + depth * inter) + 2 * static_cast<double>(call.bytes.count()) / (0.92 * r.bus);
    best = std::min(ring, tree);
  }
  return or_nccl(cluster.collective_base_latency, 8.4e-6) + best;
}

const std::vector<CurvePoint>& curve_of(CollectiveKind kind, const Costs& costs) {
  switch (kind) {
    case CollectiveKind::all_gather: return costs.all_gather;
    case CollectiveKind::reduce_scatter: return costs.reduce_scatter;
    case CollectiveKind::all_reduce: break;
  }
  return costs.all_reduce;
}

// A curve measured on c ranks stands for other group sizes by the bytes on the wire: (n-1)/n against (c-1)/c.
double curve_seconds(const CollectiveCall& call, const std::vector<CurvePoint>& curve, const Costs& costs) {
  const double n = static_cast<double>(call.ranks), c = static_cast<double>(std::max<std::int64_t>(2, costs.collective_ranks));
  return interpolate(curve, static_cast<double>(call.bytes.count())) * ((n - 1) / n) / ((c - 1) / c);
}

// One rank: a reduce-scatter is a copy from its input to its output; the others, in place, are nothing.
Demand single_rank(const CollectiveCall& call, const ClusterSpec& cluster, const Costs& costs) {
  const double bytes = call.kind == CollectiveKind::reduce_scatter ? 2.0 * static_cast<double>(call.bytes.count()) : 0;
  return traffic_demand(bytes, copy_rate(cluster, costs), cluster, costs);
}

void add_shares(Demand& d, const CollectiveCall& call, const Ring& r, const ClusterSpec& cluster, const Costs& costs) {
  const double seconds = d.alone.count();
  if (seconds <= 0) return;
  const auto share = [seconds](double bytes, double capacity) {
    return capacity > 0 ? std::min(1.0, bytes / seconds / capacity) : 0.0;
  };
  const double outside = r.nodes > 1 ? r.wire / r.p : 0;  // through this rank's NIC
  const double passes_memory = call.kind == CollectiveKind::all_gather ? 2 : 3;
  d.use[static_cast<int>(Resource::intra_link)] = share(r.wire - outside, cluster.intra_bus.count());
  d.use[static_cast<int>(Resource::inter_link)] = share(outside, cluster.inter_bus.count());
  d.use[static_cast<int>(Resource::memory)] = share(passes_memory * r.wire, memory_rate(cluster, costs));
  if (cluster.gpu.sms > 0) {
    const std::int64_t ctas = ring_channels(cluster, static_cast<std::int64_t>(r.p), static_cast<std::int64_t>(r.nodes)).ctas;
    d.use[static_cast<int>(Resource::compute)] = std::min(1.0, static_cast<double>(ctas) / static_cast<double>(cluster.gpu.sms));
    d.holds_compute = ctas > 0;
  }
}

}  // namespace

Demand collective_demand(const CollectiveCall& call, const ClusterSpec& cluster, const Costs& costs) {
  if (call.ranks <= 1) return single_rank(call, cluster, costs);
  Demand d;
  const auto& curve = curve_of(call.kind, costs);
  if (cluster.host) {
    require_calibrated(!curve.empty(), "a curve for this collective", costs);
    d.alone = Seconds(curve_seconds(call, curve, costs));
    d.use[static_cast<int>(Resource::compute)] = 1;  // the rank's one core moves the bytes
    return d;
  }
  const Ring r = ring_of(call, cluster);
  d.alone = Seconds(curve.empty() ? formula_seconds(call, r, cluster) : curve_seconds(call, curve, costs));
  add_shares(d, call, r, cluster, costs);
  return d;
}

CollectiveCall call_shape(Communicator comm, const ShardingPlan& plan, const ClusterSpec& cluster) {
  const std::int64_t shard = plan.shard(), node = std::max<std::int64_t>(1, cluster.gpus_per_node), world = plan.ranks();
  CollectiveCall call;
  switch (comm) {
    case Communicator::none: return call;
    case Communicator::shard:
    case Communicator::shard_reduce: call.ranks = shard; break;
    case Communicator::reshard: break;         // its size is the unit's: see reshard_shape
    case Communicator::replicate: call.ranks = plan.replicate(); break;
    case Communicator::world: call.ranks = world; break;
  }
  if (world <= node || cluster.host) {
    call.ranks_per_node = call.ranks;
  } else if (comm == Communicator::replicate) {
    // Ranks of a replica group are `shard` apart.
    call.ranks_per_node = shard < node && node % shard == 0 ? std::min(call.ranks, node / shard) : 1;
  } else {
    // Contiguous ranks, from a multiple of the group's size on: a node holds a multiple of the greatest common divisor of
    // them, and the node that holds the fewest has the fewest NICs to leave through.
    call.ranks_per_node = std::gcd(call.ranks, node);
  }
  return call;
}

CollectiveCall reshard_shape(std::int64_t ranks, const ShardingPlan& plan, const ClusterSpec& cluster) {
  const std::int64_t node = std::max<std::int64_t>(1, cluster.gpus_per_node);
  CollectiveCall call;
  call.ranks = ranks;
  call.ranks_per_node = plan.ranks() <= node || cluster.host ? ranks : std::gcd(ranks, node);
  return call;
}

}  // namespace fsdp
