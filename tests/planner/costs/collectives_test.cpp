// Collectives against the figures of NCCL's own model: rings, fabrics, measured curves, what they take from others.
#include "planner/costs/collectives/model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "models/catalog.h"
#include "planner/costs/curve.h"
#include "tests/planner/costs/priced.h"
#include "tests/support/relative.h"

using namespace priced;

namespace {

constexpr double kGiB = 1073741824.0;

ClusterSpec a100(std::int64_t gpus) {
  ClusterSpec c = h100(gpus);
  c.intra_bus = BytesPerSecond(240e9);
  c.inter_bus = BytesPerSecond(24e9);
  c.gpu.nvlink = BytesPerSecond(300e9);
  c.gpu.compute_capability = 80;
  c.cpu = CpuVendor::amd;
  return c;
}

double microseconds(CollectiveKind kind, double bytes, std::int64_t ranks, std::int64_t per_node,
                    const ClusterSpec& cluster) {
  const Demand d = collective_demand({kind, Bytes(static_cast<std::int64_t>(bytes)), ranks, per_node}, cluster,
                                     default_costs(cluster));
  return d.alone.count() * 1e6;
}

}  // namespace

TEST_CASE("collectives: NCCL's time, the fabric's loss, and the skew of a training step") {
  // Expected microseconds of NCCL alone: its cost model (2.28.9), evaluated independently:
  // tests/planner/costs/nccl_test.cpp.
  struct Row {
    ClusterSpec cluster;
    CollectiveKind kind;
    double bytes;
    std::int64_t ranks, per_node;
    double expected;
  };
  const auto ag = CollectiveKind::all_gather, rs = CollectiveKind::reduce_scatter, ar = CollectiveKind::all_reduce;
  const Row rows[] = {
      {h100(8), ag, kGiB / 4, 8, 8, 684.6},  {h100(8), rs, kGiB, 8, 8, 2642.0},
      {a100(8), ag, kGiB / 4, 8, 8, 1010.9}, {a100(8), ag, kGiB, 8, 8, 3946.9},
      {a100(8), ar, kGiB, 8, 8, 7885},       {h100(16), ag, kGiB / 4, 16, 8, 725.4},
      {h100(16), ag, kGiB, 16, 8, 2691.4},   {h100(64), ag, kGiB / 4, 64, 8, 984.9},
      {h100(64), ag, kGiB, 64, 8, 3049.3},   {h100(64), ar, kGiB / 4, 64, 8, 1602.3},
      {h100(64), ar, kGiB, 64, 8, 5957.9},   {a100(64), ag, kGiB / 4, 64, 8, 1805.5},
      {a100(64), ag, kGiB, 64, 8, 5947.4},   {h100(512), ag, kGiB, 512, 8, 4767},
      {h100(64, 1), ag, kGiB, 64, 1, 22910}, {h100(8, 1), ag, kGiB, 8, 1, 19680},
  };
  for (const Row& r : rows) {
    CAPTURE(r.expected);
    Costs costs = default_costs(r.cluster);
    const CollectiveCall call{r.kind, Bytes(static_cast<std::int64_t>(r.bytes)), r.ranks, r.per_node};
    const auto seconds = [&] { return collective_demand(call, r.cluster, costs).alone.count(); };
    const double usual = seconds();
    costs.collective_skew = Seconds(0);
    const double without_skew = seconds();
    CHECK(usual - without_skew == relative(20e-6));
    costs.fabric_efficiency = costs.fabric_efficiency_at_scale = 1;
    costs.pessimistic_collectives = false;  // NCCL's own choice
    CHECK(seconds() * 1e6 == relative(r.expected).epsilon(0.005));
    if (r.ranks == r.per_node) CHECK(seconds() == relative(without_skew));
  }
  // 64 H100, 1 GiB, Simple ring: 8.4 + 56 hops of 3.4 + 7 of 14 us, then 63/64 GiB at 384 GB/s, of which the fabric
  // gives 0.95.
  CHECK(microseconds(ag, kGiB, 64, 8, h100(64)) ==
        relative(20 + 8.4 + 56 * 3.4 + 7 * 14 + kGiB * 63 / 64 / 384e3 / 0.95).epsilon(1e-6));
  // 512 H100 choose LL128 (1 stays 14 + 448 hops of 1.9 and 63 of 4 us; 0.92 of 384, at most 8 * 36.7 GB/s), or,
  // pessimistic as by default, Simple.
  Costs costs = default_costs(h100(512));
  CHECK(costs.pessimistic_collectives);
  costs.pessimistic_collectives = false;
  const CollectiveCall large{ag, Bytes(1LL << 30), 512, 8};
  CHECK(collective_demand(large, h100(512), costs).alone.count() * 1e6 ==
        relative(20 + 14 + 448 * 1.9 + 63 * 4 + kGiB * 511 / 512 / 293.6e3 / 0.90).epsilon(1e-6));
  costs.pessimistic_collectives = true;
  CHECK(collective_demand(large, h100(512), costs).alone.count() * 1e6 ==
        relative(20 + 8.4 + 448 * 3.4 + 63 * 14 + kGiB * 511 / 512 / 384e3 / 0.90).epsilon(1e-6));
}

TEST_CASE("fabrics: groups that share NICs, switches that are oversubscribed") {
  const auto ag = CollectiveKind::all_gather;
  ClusterSpec cluster = h100(64);
  Costs costs = default_costs(cluster);
  costs.fabric_efficiency = costs.fabric_efficiency_at_scale = 1;
  const auto factor = [&](std::int64_t ranks, std::int64_t per_node, std::int64_t nodes_apart = 1) {
    return fabric_factor({ag, Bytes(1), ranks, per_node, nodes_apart}, cluster, costs);
  };
  CHECK(factor(8, 8) == 1);
  CHECK(factor(64, 8) == 1);
  CHECK(factor(8, 1) == 1);  // eight groups side by side, a NIC each
  cluster.nics_per_node = 4;
  CHECK(factor(64, 8) == 1);
  CHECK(factor(16, 2) == 1);   // four groups, a NIC each
  CHECK(factor(8, 1) == 0.5);  // eight groups on four NICs
  cluster = h100(8 * 256);
  cluster.oversubscription = 4;
  CHECK(factor(8 * 32, 8) == 1);  // 32 nodes below one leaf of a rail
  CHECK(factor(8 * 256, 8) == relative(255.0 / (4 * 224)));
  CHECK(factor(128, 1, 2) == relative(127.0 / (4 * (128 - 16))));  // every second node: 16 of a group below a leaf
  cluster.rail_optimized = false;                                  // 8 NICs of a node on one leaf of 32 ports: 4 nodes
  CHECK(factor(8 * 4, 8) == 1);
  CHECK(factor(8 * 16, 8) == relative(15.0 / (4 * 12)));
  CHECK(factor(8 * 32, 8) == relative(31.0 / (4 * 28) * (1 - 0.62 / 5)));  // and the flows meet on links
  cluster.oversubscription = 1;
  CHECK(factor(8 * 16, 8) == 1);
  CHECK(factor(8 * 32, 8) == relative(1 - 0.62 / 5));
  cluster.rail_optimized = true;
  CHECK(factor(8 * 32, 8) == 1);
  costs.fabric_efficiency = 0.95;
  costs.fabric_efficiency_at_scale = 0.9;
  CHECK(factor(8 * 8, 8) == relative(0.95));
  CHECK(factor(8 * 16, 8) == relative(0.9));
  CHECK(factor(8 * 256, 8) == relative(0.9));
}

// Published: 38 % of the bandwidth of a full tree of 512 nodes, routed statically (Geoffray and Hoefler 2008); on
// Leonardo's dragonfly+ NCCL's all-reduce loses up to a half at 1,024 GPUs, 4 a node (De Sensi et al. 2024).
TEST_CASE("a full fabric without rails loses what was measured on such fabrics") {
  ClusterSpec cluster = cluster_of(load_gpu("a100-sxm-64", "test"), 4096, 4);
  Costs costs = default_costs(cluster);
  costs.fabric_efficiency = costs.fabric_efficiency_at_scale = 1;
  const auto factor = [&](std::int64_t nodes) {
    return fabric_factor({CollectiveKind::all_gather, Bytes(1), 4 * nodes, 4}, cluster, costs);
  };
  CHECK(factor(512) == 1);
  cluster.rail_optimized = false;
  CHECK(factor(8) == 1);
  CHECK(factor(16) == 1);
  CHECK(factor(512) == relative(0.38));
  CHECK(factor(1024) == relative(0.38));
  CHECK(factor(256) > 0.5);
  CHECK(factor(256) < 0.51);
  for (std::int64_t n = 2; n < 1024; ++n) CHECK(factor(n + 1) <= factor(n));
  cluster.nics_per_node = 1;  // 32 nodes below a leaf switch
  CHECK(fabric_factor({CollectiveKind::all_gather, Bytes(1), 128, 4}, cluster, costs) == 1);
}

TEST_CASE("a measured curve of sizes that nothing has still gives a time") {
  Costs costs = default_costs(h100(8));
  costs.collective_curves = {{CollectiveKind::all_gather, 8, 8, {{1e20, 1}, {1e24, 2}}}};
  costs.collective_skew = Seconds(0);
  const double seconds =
      collective_demand({CollectiveKind::all_gather, Bytes(1 << 20), 8, 8}, h100(8), costs).alone.count();
  CHECK(seconds > 0);
  CHECK(seconds < 1);
}

TEST_CASE("symmetric memory and copy engines: fewer SMs inside a node, nothing else between nodes") {
  const ClusterSpec cluster = h100(64);
  Costs costs = default_costs(cluster);
  costs.collective_skew = Seconds(0);
  const auto demand = [&](CollectiveVariant variant, CollectiveKind kind, std::int64_t bytes, std::int64_t ranks) {
    costs.collective_variant = variant;
    return collective_demand({kind, Bytes(bytes), ranks, 8}, cluster, costs);
  };
  using enum CollectiveVariant;
  using enum CollectiveKind;
  // 1 GiB, multicast: ceil(16 / 8) = 2 blocks. 7/8 GiB at the smooth minimum of 2 * 44 * 0.55 * 8 = 387 and 320 GiB/s,
  // rounded over 44: 320 - 44 ln(1 + e^((320 - 387.2) / 44) - e^(-387.2 / 44)) = 311.4 GiB/s; base 7.8 us, less the 1
  // us of the softplus.
  const Demand gather = demand(symmetric_memory, all_gather, 1LL << 30, 8);
  CHECK(gather.alone.count() * 1e6 == relative(7.8 - 1 + 7.0 / 8 / 311.4 * 1e6).epsilon(1e-3));
  CHECK(gather.use[0] == relative(2.0 / 132));
  // A small message costs little more than the base latency of an LL kernel: 4.5 us against NCCL's 6.6 + 7 * 0.6.
  const double small = demand(symmetric_memory, all_gather, 1024, 8).alone.count() * 1e6;
  CHECK(small > 4.5);
  CHECK(small < 5.5);
  // 1 MiB: nine times its bytes keep an LL kernel 30 us busy; multicast as above takes 7.8 + ln(1 + e^(7/8 MiB / 311.4
  // GiB/s - 1)), 9.7.
  CHECK(demand(symmetric_memory, all_gather, 1 << 20, 8).alone.count() * 1e6 == relative(9.705).epsilon(1e-3));
  const Demand copied = demand(copy_engine, all_gather, 1LL << 30, 8);
  CHECK(copied.use[0] == 0);
  CHECK(!copied.holds_compute);
  CHECK(copied.alone.count() * 1e6 == relative(2 * 4.5 + kGiB * 7 / 8 / 360e3).epsilon(1e-6));
  CHECK(demand(copy_engine, reduce_scatter, 1LL << 30, 8).alone ==
        demand(symmetric_memory, reduce_scatter, 1LL << 30, 8).alone);
  CHECK(demand(symmetric_memory, all_gather, 1LL << 30, 64).alone == demand(nccl, all_gather, 1LL << 30, 64).alone);
}

TEST_CASE("measured curves: their own shape inside the sizes, the formula's ratio elsewhere") {
  const ClusterSpec cluster = h100(64);
  Costs costs = default_costs(cluster);
  costs.collective_skew = Seconds(0);
  const Costs formula = costs;
  costs.collective_curves = {
      {CollectiveKind::all_gather, 8, 8, {{1e6, 50e-6}, {1e8, 500e-6}, {1e9, 400e-6}, {2e9, 10e-3}}},
      {CollectiveKind::all_gather, 32, 8, {{1e8, 1e-3}}}};
  const auto seconds = [&](const Costs& c, double bytes, std::int64_t ranks, std::int64_t per_node) {
    const CollectiveCall call{CollectiveKind::all_gather, Bytes(static_cast<std::int64_t>(bytes)), ranks, per_node};
    return collective_demand(call, cluster, c).alone.count();
  };
  CHECK(seconds(costs, 1e6, 8, 8) == relative(50e-6));
  CHECK(seconds(costs, 1e7, 8, 8) == relative(std::sqrt(50e-6 * 500e-6)));  // log-log: the geometric mean
  CHECK(seconds(costs, 1e9, 8, 8) == relative(500e-6));                     // a falling point is lifted
  CHECK(seconds(costs, 8e9, 8, 8) == relative(10e-3 * seconds(formula, 8e9, 8, 8) / seconds(formula, 2e9, 8, 8)));
  CHECK(seconds(costs, 1e4, 8, 8) == relative(50e-6 * seconds(formula, 1e4, 8, 8) / seconds(formula, 1e6, 8, 8)));
  CHECK(seconds(costs, 1e6, 4, 4) == relative(50e-6 * seconds(formula, 1e6, 4, 4) / seconds(formula, 1e6, 8, 8)));
  CHECK(seconds(costs, 1e8, 64, 8) == relative(1e-3 * seconds(formula, 1e8, 64, 8) / seconds(formula, 1e8, 32, 8)));
  const CollectiveCall other{CollectiveKind::reduce_scatter, Bytes(1000), 8, 8};
  CHECK(collective_demand(other, cluster, costs).alone ==
        collective_demand(other, cluster, formula).alone);  // not measured
  CHECK(parse_costs(to_json_text(costs), "costs.json") == costs);
}

TEST_CASE("what a collective takes from others") {
  const ClusterSpec cluster = h100(64);
  const Costs costs = default_costs(cluster);
  const Demand d = collective_demand({CollectiveKind::reduce_scatter, Bytes(1LL << 30), 64, 8}, cluster, costs);
  CHECK(d.holds_compute);
  CHECK(d.use[0] == relative(16.0 / 132));  // channels of 8 NICs, doubled
  // Wire bytes 63/64 GiB; 1/8 of them over the NIC at 48 GB/s, 7/8 over NVLink at 360 GB/s, 3 memory bytes each.
  const double wire = kGiB * 63 / 64, t = d.alone.count();
  CHECK(d.use[static_cast<int>(Resource::inter_link)] == relative(wire / 8 / 48e9 / t));
  CHECK(d.use[static_cast<int>(Resource::intra_link)] == relative(wire * 7 / 8 / 360e9 / t));
  CHECK(d.use[static_cast<int>(Resource::memory)] == relative(3 * wire / (0.85 * 3.35e12) / t));
  for (const double u : d.use) CHECK((u >= 0 && u <= 1));
  // One rank: a reduce-scatter copies (2 bytes of traffic each), an all-gather in place does nothing.
  const double overhead = costs.copy.overhead.count();
  CHECK(collective_demand({CollectiveKind::reduce_scatter, Bytes(1 << 20), 1, 1}, cluster, costs).alone.count() ==
        relative(overhead + 2.0 * (1 << 20) / costs.copy.byte_rate.count()));
  CHECK(collective_demand({CollectiveKind::all_gather, Bytes(1 << 20), 1, 1}, cluster, costs).alone.count() ==
        relative(overhead));
}

TEST_CASE("laws of collectives: more bytes or less bandwidth never take less time") {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    CAPTURE(trial);
    const std::int64_t per_node = 1 << (random() % 4), nodes = 1 + random() % 8;
    ClusterSpec slow = h100(per_node * nodes, per_node), fast = slow;
    fast.intra_bus = slow.intra_bus * 2.0;
    fast.inter_bus = slow.inter_bus * 1.5;
    const auto kind = static_cast<CollectiveKind>(random() % 3);
    const double bytes = 1.0 + random() % (1 << 28);
    if (per_node * nodes == 1) continue;
    const double t = microseconds(kind, bytes, per_node * nodes, per_node, slow);
    CHECK(microseconds(kind, 2 * bytes, per_node * nodes, per_node, slow) > t);
    CHECK(microseconds(kind, bytes, per_node * nodes, per_node, fast) <= t);
  }
}

TEST_CASE("ranks of a communicator lie on nodes as the mesh numbers them") {
  const ModelGraph model = toy::model();
  const auto shape = [&](Communicator comm, std::int64_t replicate, std::int64_t shard, std::int64_t per_node) {
    const CollectiveCall call = call_shape(comm, toy::plan(model, shard, replicate), h100(replicate * shard, per_node));
    return std::pair(call.ranks, call.ranks_per_node);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  CHECK(shape(Communicator::shard, 1, 64, 8) == Pair(64, 8));
  CHECK(shape(Communicator::shard, 8, 8, 8) == Pair(8, 8));        // within a node
  CHECK(shape(Communicator::replicate, 8, 8, 8) == Pair(8, 1));    // one rank of every node
  CHECK(shape(Communicator::replicate, 16, 4, 8) == Pair(16, 2));  // shards of half a node: two replicas per node
  CHECK(shape(Communicator::shard, 4, 4, 8) == Pair(4, 4));
  CHECK(shape(Communicator::shard, 2, 12, 8) == Pair(12, 4));  // ranks 0-11 lie 8 + 4, ranks 12-23 lie 4 + 8
  CHECK(shape(Communicator::shard, 1, 6, 8) == Pair(6, 6));    // one node, not full
  CHECK(shape(Communicator::world, 8, 8, 8) == Pair(64, 8));
  CHECK(shape(Communicator::none, 8, 8, 8) == Pair(1, 1));
}
