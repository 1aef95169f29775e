// Collectives as demands: their time alone (costs/collectives/model.h), and the resources that they take from others:
//
// SMs                held by the channels that NCCL spends on that size (none for copy engines);
// device memory      3 bytes per wire byte: NCCL's rings pass data on through buffers, so a neighbour writes a byte, we
//                    read it and write the result; where bytes are summed, we read our own and write the next rank's.
//                    NCCL's maintainers say 2 to 3 times the bus bandwidth (NVIDIA/nccl issue 1428). A reduction in
//                    fp32 moves twice the bytes of one in bf16, and its size says so;
// links              every rank sends wire = B (n-1)/n bytes (all-reduce: twice), one in p of them through its NIC when
//                    a node has p ranks of the group: a ring leaves a node once, and p rings side by side each leave
//                    through the NIC of another rank.
#include <algorithm>
#include <numeric>

#include "models/topology.h"
#include "planner/costs.h"
#include "planner/costs/collectives/model.h"
#include "planner/costs/curve.h"
#include "planner/costs/rates.h"

namespace fsdp {

namespace {

// CPU ranks have no formula: a curve measured on c of them is scaled to other group sizes by the bytes that move,
// (n-1)/n over (c-1)/c.
double host_seconds(const CollectiveCall& call, const Costs& costs) {
  const auto& curve = collective_curve(call.kind, costs);
  require_calibrated(!curve.empty(), "a curve for this collective", costs);
  const double n = static_cast<double>(call.ranks),
               c = static_cast<double>(std::max<std::int64_t>(2, costs.collective_ranks.value_or(2)));
  return interpolate(curve, static_cast<double>(call.bytes.count())) * ((n - 1) / n) / ((c - 1) / c);
}

// One rank: a reduce-scatter is a copy from its input to its output; the others, in place, do nothing.
Demand single_rank(const CollectiveCall& call, const ClusterSpec& cluster, const Costs& costs) {
  const double bytes = call.kind == CollectiveKind::reduce_scatter ? 2.0 * static_cast<double>(call.bytes.count()) : 0;
  return traffic_demand(bytes, copy_rate(cluster, costs), cluster, costs);
}

void add_shares(Demand& d, const CollectiveCall& call, bool crosses_nodes, std::int64_t ctas,
                const ClusterSpec& cluster, const Costs& costs) {
  const double seconds = d.alone.count();
  if (seconds <= 0) return;
  const auto share = [seconds](double bytes, double capacity) {
    return capacity > 0 ? std::min(1.0, bytes / seconds / capacity) : 0.0;
  };
  const double n = static_cast<double>(call.ranks),
               per_node = static_cast<double>(std::clamp<std::int64_t>(call.ranks_per_node, 1, call.ranks));
  const double wire =
      static_cast<double>(call.bytes.count()) * (n - 1) / n * (call.kind == CollectiveKind::all_reduce ? 2 : 1);
  const double outside = crosses_nodes ? wire / per_node : 0;  // through this rank's NIC
  constexpr double passes_memory = 3;
  d.use[static_cast<int>(Resource::intra_link)] =
      share(wire - outside, intra_bus_of(cluster, static_cast<std::int64_t>(per_node)).count());
  d.use[static_cast<int>(Resource::inter_link)] = share(outside, cluster.inter_bus.count());
  d.use[static_cast<int>(Resource::memory)] = share(passes_memory * wire, memory_rate(cluster, costs));
  if (cluster.gpu.sms > 0) {
    d.use[static_cast<int>(Resource::compute)] =
        std::min(1.0, static_cast<double>(ctas) / static_cast<double>(cluster.gpu.sms));
    d.holds_compute = ctas > 0;
    d.beside = costs.collective_beside;
  }
}

}  // namespace

Demand collective_demand(const CollectiveCall& call, const ClusterSpec& cluster, const Costs& costs) {
  if (call.ranks <= 1) return single_rank(call, cluster, costs);
  Demand d;
  if (cluster.host) {
    d.alone = Seconds(host_seconds(call, costs));
    d.use[static_cast<int>(Resource::compute)] = 1;  // the rank's one core moves the bytes
    return d;
  }
  const CollectiveModel model(call, cluster, costs);
  const CollectivePrice price = model.price(call.kind, call.bytes);
  d.alone = price.seconds;
  add_shares(d, call, model.nodes() > 1, price.ctas, cluster, costs);
  return d;
}

CollectiveCall call_shape(Communicator comm, const ShardingPlan& plan, const ClusterSpec& cluster) {
  const std::int64_t shard = plan.shard(), node = std::max<std::int64_t>(1, cluster.domain()), world = plan.ranks();
  const std::int64_t tensor = plan.tensor();
  CollectiveCall call;
  switch (comm) {
    case Communicator::none: return call;
    case Communicator::shard:
    case Communicator::shard_reduce: call.ranks = shard; break;
    case Communicator::reshard: break;  // its size is the unit's: see reshard_shape
    case Communicator::replicate: call.ranks = plan.replicate(); break;
    case Communicator::world: call.ranks = world; break;
    case Communicator::tensor: call.ranks = tensor; break;
    case Communicator::own_shard: call.ranks = plan.own_shard(); break;
    case Communicator::own_replicate:
      call.ranks = plan.data_ranks() / std::max<std::int64_t>(1, plan.own_shard());
      break;
  }
  if (world <= node || cluster.host) {
    call.ranks_per_node = call.ranks;
  } else if (comm == Communicator::replicate || comm == Communicator::own_replicate) {
    // Ranks of a replica group are `shard` times `tensor` apart.
    const std::int64_t apart = (comm == Communicator::replicate ? shard : plan.own_shard()) * tensor;
    call.ranks_per_node = apart < node && node % apart == 0 ? std::min(call.ranks, node / apart) : 1;
    call.nodes_apart = std::max<std::int64_t>(1, apart / node);
  } else if (tensor > 1 && (comm == Communicator::shard || comm == Communicator::shard_reduce)) {
    call.ranks_per_node = tensor < node && node % tensor == 0 ? std::gcd(call.ranks, node / tensor) : 1;
    call.nodes_apart = std::max<std::int64_t>(1, tensor / node);
  } else {
    // Contiguous ranks, from a multiple of the group's size on: a node holds a multiple of the greatest common divisor
    // of them, and the node that holds the fewest has the fewest NICs to leave through.
    call.ranks_per_node = std::gcd(call.ranks, node);
  }
  return call;
}

CollectiveCall reshard_shape(std::int64_t ranks, const ShardingPlan& plan, const ClusterSpec& cluster) {
  const std::int64_t node = std::max<std::int64_t>(1, cluster.domain());
  CollectiveCall call;
  call.ranks = ranks;
  call.ranks_per_node = plan.ranks() <= node || cluster.host ? ranks : std::gcd(ranks, node);
  return call;
}

}  // namespace fsdp
