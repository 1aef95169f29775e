// Demands against closed forms, and rings against the figures of NCCL's own model.
#include "planner/costs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/costs/collectives/model.h"
#include "planner/costs/curve.h"
#include "planner/costs/kernels.h"
#include "planner/lower.h"
#include "planner/tensor/local_model.h"
#include "tests/support/relative.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

constexpr double kGiB = 1073741824.0;

// What NCCL counts on a DGX H100: 12 channels of 30 GB/s inside, 8 x 48 GB/s between nodes.
ClusterSpec h100(std::int64_t gpus, std::int64_t per_node = 8) {
  ClusterSpec c;
  c.name = "test-h100";
  c.gpu.name = "test-gpu";
  c.gpu.fp32 = FlopsPerSecond(67e12);
  c.gpu.tf32 = FlopsPerSecond(494.5e12);
  c.gpu.bf16 = FlopsPerSecond(989e12);
  c.gpu.memory_bandwidth = BytesPerSecond(3.35e12);
  c.gpu.sms = 132;
  c.gpu.host_link = BytesPerSecond(5.5e10);
  c.gpu.usable_memory = Bytes(79LL << 30);
  c.gpus = gpus;
  c.gpus_per_node = per_node;
  c.intra_bus = BytesPerSecond(360e9);
  c.inter_bus = BytesPerSecond(48e9);
  c.gpu.nvlink = BytesPerSecond(450e9);
  c.gpu.compute_capability = 90;
  return c;
}

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

ClusterSpec host_cluster() {
  ClusterSpec c;
  c.name = c.gpu.name = "host";
  c.host = true;
  c.gpus = c.gpus_per_node = 2;
  return c;
}

Costs host_costs() {
  Costs c;
  c.platform = "host";
  c.source = "made up";
  c.host_per_operation = Seconds(1e-6);
  c.kernels.resize(2 * kOpKinds);
  for (KernelRate& k : c.kernels) k = {Seconds(1e-6), FlopsPerSecond(0), BytesPerSecond(1e9)};
  c.matmul_curve[0] = c.matmul_curve[1] = c.matmul_curve[2] = {{1e3, 1e-6}, {1e9, 1e-1}};
  c.copy = c.cast = c.optimizer = c.norm = {Seconds(1e-6), FlopsPerSecond(0), BytesPerSecond(2e9)};
  c.all_gather = c.reduce_scatter = c.all_reduce = {{8, 1e-5}, {1e6, 1e-3}};
  c.collective_ranks = 2;
  return c;
}

struct Setup {
  ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = toy::plan(model, 2);
  const Implementation& impl = find_implementation("native", false, "test");
  ClusterSpec cluster = h100(2);
  Costs costs = default_costs(cluster);
  [[nodiscard]] CostContext context() const { return {model, plan, impl, cluster, costs}; }
};

// One sequence of 8192 tokens in bf16, on GPUs that are alike, with that many 8-bit operations per second.
Setup in_8_bits(double fp8) {
  Setup s;
  s.plan.param_dtype = DType::bf16;
  s.plan.seq_len = 8192;
  s.plan.micro_batches = {1};
  s.cluster.gpu.fp8 = FlopsPerSecond(fp8);
  s.costs = default_costs(s.cluster);
  s.costs.gpu_spread = 0;
  return s;
}

Bytes traffic(const Setup& s, const Op& op, bool backward) {
  const OpFacts f = facts(s.impl, op, {s.plan.micro_batches[0], s.plan.seq_len, size_of(s.plan.param_dtype)});
  return Bytes(backward ? f.backward_traffic_bytes : f.forward_traffic_bytes);
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

TEST_CASE("kernels: the slower of arithmetic and memory, plus launches") {
  Setup s;
  s.plan.param_dtype = DType::bf16;
  s.plan.micro_batches = {64};
  s.plan.seq_len = 4096;
  Op linear;
  linear.kind = OpKind::linear;
  linear.shape.in = linear.shape.out = 4096;
  linear.inputs = linear.outputs = s.model.ops[0].outputs;
  linear.params = {0};
  s.model.ops.insert(s.model.ops.begin(), linear);
  Operation forward;
  forward.action = Action::forward;
  forward.graph_op = 0;
  const Program none;
  const Step step;
  const Demand d = demand_of(forward, step, none, s.context());
  // Tiles of 256 x 128: 1024 * 32 = 32768 on 132 SMs are 249 waves of 2 * 256 * 128 * (4096 + 256) flops at an SM's
  // share of 0.75 of 989 TFLOP/s, of whose clock 0.95 is sustained: 13.3 ms, and 0.9 % more on the slower of two GPUs.
  // Memory: 4.4 GB / 2.85 TB/s = 1.5 ms, is not the bound.
  const double flops = 2.0 * 64 * 4096 * 4096 * 4096;
  CHECK(d.flops.count() == relative(flops));
  CHECK(d.alone.count() == relative(2e-6 + 249 * 65536.0 * 4352 / (0.75 * 0.95 * 989e12 / 132) * 1.00903));
  CHECK(d.use[0] == relative(1).epsilon(1e-3));
  CHECK(d.host.count() == relative(5e-6 + s.impl.host_seconds_per_launch));

  forward.action = Action::backward;  // two products, so twice the arithmetic
  CHECK(demand_of(forward, step, none, s.context()).flops.count() == relative(2 * flops));

  // 128 tokens through 8192 x 8192: reading the weight takes longer than 64 tiles of 128 x 128 whose k is split in two.
  s.plan.seq_len = 128;
  s.plan.micro_batches = {1};
  linear.shape.in = linear.shape.out = 8192;
  s.model.ops[0] = linear;
  forward.action = Action::forward;
  const Demand thin = demand_of(forward, step, none, s.context());
  CHECK(thin.alone.count() ==
        relative(2e-6 + static_cast<double>(traffic(s, linear, false).count()) / (0.85 * 3.35e12)));
  CHECK(thin.use[1] > 0.9);
  forward.action = Action::backward;  // the weight's gradient, of 128 terms only, is not cheaper
  CHECK(demand_of(forward, step, none, s.context()).alone.count() > 2 * thin.alone.count());
}

TEST_CASE("a loss in chunks pays for each chunk's launches") {
  Setup s;
  s.plan.param_dtype = DType::bf16;
  const Implementation& eager = find_implementation("torchtitan", false, "test");
  const auto loss = static_cast<std::int32_t>(s.model.ops.size()) - 1;
  Operation op;
  op.action = Action::forward;
  op.graph_op = loss;
  const auto launched = [&] {
    const CostContext c{s.model, s.plan, eager, s.cluster, s.costs};
    return (demand_of(op, Step{}, Program{}, c).host.count() - s.costs.host_per_operation.count()) /
           eager.host_seconds_per_launch;
  };
  REQUIRE(s.model.ops.back().kind == OpKind::cross_entropy);
  CHECK(launched() == relative(3));  // cast, log_softmax, nll
  s.plan.seq_len = 8, s.plan.loss_chunks = 4;
  CHECK(launched() == relative(12));
  s.plan.seq_len = 6;  // of two tokens each: torch.chunk makes three
  CHECK(launched() == relative(9));
}

TEST_CASE("dtypes: fp32 products run on fp32 units (PyTorch does not use TF32 unless told), fp64 at half of fp32") {
  Setup s;
  s.plan.micro_batches = {64};
  s.plan.seq_len = 4096;
  for (Op& op : s.model.ops)
    if (op.kind == OpKind::linear) op.shape.in = op.shape.out = 8192;
  Operation forward;
  forward.action = Action::forward;
  forward.graph_op = 1;
  REQUIRE(s.model.ops[1].kind == OpKind::linear);
  const auto seconds = [&](DType t) {
    s.plan.param_dtype = t;
    return demand_of(forward, {}, {}, s.context()).alone.count() - 2e-6;
  };
  const double bf16 = seconds(DType::bf16);
  CHECK(seconds(DType::f16) == relative(bf16));
  CHECK(seconds(DType::f32) / bf16 == relative(989.0 / 67).epsilon(0.05));  // a tile takes its fixed time in any type
  CHECK(seconds(DType::f64) / bf16 == relative(989 / 33.5).epsilon(0.05));
}

TEST_CASE("copies and the optimizer move the bytes of their arguments") {
  Setup s;
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands demands = demands_of(program.steady_step, program, s.context());
  const auto line = [](const KernelRate& r, double bytes) { return r.overhead.count() + bytes / r.byte_rate.count(); };
  int optimizers = 0, copies = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.unit < 0) continue;
    const UnitLayout& unit = program.layouts[static_cast<std::size_t>(op.unit)];
    const auto shard = static_cast<double>(unit.shard_elements), local = static_cast<double>(unit.local_elements(0));
    if (op.action == Action::optimizer) {  // fp32: reads p, g, m, v and writes p, m, v; states are unpadded
      CHECK(demands[i].alone.count() == relative(line(s.costs.optimizer, 12 * shard + 16 * local)));
      ++optimizers;
    }
    if (op.action == Action::gather_copy_in) {
      CHECK(demands[i].alone.count() == relative(line(s.costs.copy, 8 * shard)));
      ++copies;
    }
    if (op.action == Action::gather_copy_out)  // reads both ranks' slots, writes the parameters without their padding
      CHECK(demands[i].alone.count() == relative(line(s.costs.copy, 8 * shard + 4 * static_cast<double>(unit.numel))));
  }
  CHECK(optimizers == 4);
  CHECK(copies > 4);
}

TEST_CASE("collectives of a step: bytes and dtype of each, over its own group") {
  Setup s;
  s.plan.param_dtype = DType::bf16;  // gathered in bf16, reduced in fp32
  s.plan.mesh = {{"replicate", 2}, {"shard", 4}};
  s.plan.clip_norm = 1.0;
  s.cluster = h100(8);
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands demands = demands_of(program.steady_step, program, s.context());
  const auto price = [&](CollectiveKind kind, std::int64_t bytes, std::int64_t ranks) {
    return collective_demand({kind, Bytes(bytes), ranks, ranks}, s.cluster, s.costs).alone.count();
  };
  std::set<Action> seen;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (!is_collective(op.action)) continue;
    seen.insert(op.action);
    const double seconds = demands[i].alone.count();
    const std::int64_t shard = op.unit < 0 ? 0 : program.layouts[static_cast<std::size_t>(op.unit)].shard_elements;
    if (op.action == Action::all_gather)
      CHECK(seconds == relative(price(CollectiveKind::all_gather, 2 * 4 * shard, 4)));
    if (op.action == Action::reduce_scatter)
      CHECK(seconds == relative(price(CollectiveKind::reduce_scatter, 4 * 4 * shard, 4)));
    if (op.action == Action::all_reduce) CHECK(seconds == relative(price(CollectiveKind::all_reduce, 4 * shard, 2)));
    if (op.action == Action::clip_reduce)
      CHECK(seconds == relative(price(CollectiveKind::all_reduce, 8, 4)));  // replicas agree
    if (op.action == Action::reduce_loss) CHECK(seconds == relative(price(CollectiveKind::all_reduce, 8, 8)));
  }
  CHECK(seen.size() == 5);
  // A ring all-reduce of next to nothing (LL) passes each of the n - 1 links twice; before it comes the skew.
  CHECK(price(CollectiveKind::all_reduce, 8, 8) == relative(20e-6 + 6.6e-6 + 2 * 7 * 0.6e-6).epsilon(1e-4));
}

TEST_CASE("a frozen weight leaves one of backward's two products, a first trained one the other") {
  Setup s;
  const auto first_linear = static_cast<std::int32_t>(
      std::find_if(s.model.ops.begin(), s.model.ops.end(), [](const Op& o) { return o.kind == OpKind::linear; }) -
      s.model.ops.begin());
  Operation backward;
  backward.action = Action::backward;
  backward.graph_op = first_linear;
  const auto flops = [&] { return demand_of(backward, {}, {}, s.context()).flops.count(); };
  const double both = flops();
  const ModelGraph whole = s.model;
  const Parameter& weight =
      whole.parameters[static_cast<std::size_t>(whole.ops[static_cast<std::size_t>(first_linear)].params[0])];
  s.model = freeze(whole, std::vector<std::string>{weight.name}, "t");
  CHECK(flops() == relative(both / 2));
  const Parameter& embedding = whole.parameters[static_cast<std::size_t>(whole.ops[0].params[0])];
  s.model = freeze(whole, std::vector<std::string>{embedding.name}, "t");
  const bool reads_embedding = whole.ops[static_cast<std::size_t>(first_linear)].inputs[0] == whole.ops[0].outputs[0];
  CHECK(flops() == relative(reads_embedding ? both / 2 : both));
}

TEST_CASE("pricing a step at once equals pricing its operations one by one") {
  const auto compare = [](const Setup& s) {
    const Program program = lower(s.model, s.plan, s.impl);
    for (const Step* step : {&program.init, &program.first_step, &program.steady_step}) {
      const Demands demands = demands_of(*step, program, s.context());
      REQUIRE(demands.size() == step->ops.size());
      for (std::size_t i = 0; i < demands.size(); ++i) {
        const Demand one = demand_of(step->ops[i], *step, program, s.context());
        CAPTURE(i);
        CHECK(one.alone == demands[i].alone);
        CHECK(one.use == demands[i].use);
        CHECK(one.host == demands[i].host);
        CHECK(one.flops == demands[i].flops);
        CHECK(one.holds_compute == demands[i].holds_compute);
      }
    }
  };
  Setup s;
  s.plan.micro_batches = {1, 3, 1};
  s.plan.clip_norm = 1.0;
  compare(s);
  s.plan.param_dtype = DType::bf16;
  s.plan.mesh = {{"replicate", 2}, {"shard", 4}};
  s.plan.grad_sync = GradSync::last;
  s.plan.checkpointed = {"layers.1"};
  s.plan.units.erase(s.plan.units.begin());  // units of different sizes
  s.cluster = h100(8);
  compare(s);
  s.cluster = host_cluster();
  s.costs = host_costs();
  compare(s);
}

TEST_CASE("on the host everything takes the rank's one core, and nothing is priced without calibration") {
  Setup s;
  s.cluster = host_cluster();
  CHECK_THROWS_WITH_AS(
      default_costs(s.cluster),
      doctest::Contains("run `fsdp-plan calibrate --backend host -o costs.json` and pass --costs costs.json"),
      InputError);
  s.costs = host_costs();
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands demands = demands_of(program.steady_step, program, s.context());
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.host_only || op.action == Action::read_loss) continue;
    CAPTURE(i);
    CHECK(demands[i].alone.count() > 0);
    CHECK(demands[i].use == std::array<double, kResources>{1, 0, 0, 0, 0});
    CHECK_FALSE(demands[i].holds_compute);
  }
  s.costs.kernels.clear();
  CHECK_THROWS_WITH_AS((void)demands_of(program.steady_step, program, s.context()),
                       doctest::Contains("no entry for 'forward embedding'"), InputError);
  s.costs = host_costs();
  s.costs.all_gather.clear();
  CHECK_THROWS_AS((void)demands_of(program.steady_step, program, s.context()), InputError);
  s.costs = default_costs(h100(2));
  CHECK_THROWS_WITH_AS((void)demands_of(program.steady_step, program, s.context()),
                       doctest::Contains("of platform 'test-gpu'"), InputError);
}

TEST_CASE("ranks that share cores take turns; ranks with several cores overlap; threads have delays") {
  Setup s;
  s.cluster = host_cluster();
  s.costs = host_costs();
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands before = demands_of(program.steady_step, program, s.context());
  s.costs.collective_ranks = 2;
  s.costs.threads = HostThreads{.cores = 2,
                                .wake = Seconds(1e-5),
                                .wake_beside = Seconds(2e-5),
                                .collective_beside = Seconds(3e-5),
                                .skew = Seconds(4e-5),
                                .skew_most = Seconds(5e-5),
                                .skew_share = 0.25};
  const auto check = [&](std::int64_t ranks, double slower, double use) {
    s.cluster.gpus = ranks;
    CAPTURE(ranks);
    const Demands after = demands_of(program.steady_step, program, s.context());
    for (std::size_t i = 0; i < after.size(); ++i) {
      const Operation& op = program.steady_step.ops[i];
      if (op.host_only || op.action == Action::read_loss) continue;
      const bool collective = is_collective(op.action);
      // A collective's curve is of that many ranks, too.
      if (!collective || s.costs.collective_ranks == 2)
        CHECK(after[i].alone.count() == relative(before[i].alone.count() * slower));
      CHECK(after[i].host.count() == relative(before[i].host.count() * slower));
      CHECK(after[i].use[0] == relative(use));
      CHECK(after[i].wake.count() == 1e-5);
      CHECK(after[i].wake_beside.count() == (collective ? 3e-5 : 2e-5));
      CHECK(after[i].skew_most.count() == (collective ? 5e-5 : 0));
      CHECK(after[i].skew_share == (collective ? 0.25 : 0));
    }
  };
  check(2, 1, 1);              // measured so
  check(4, 2, 1);              // two ranks on each core
  s.costs.threads->cores = 8;  // four for each of the two ranks: four threads run side by side
  check(2, 1, 0.25);
  s.costs.threads->cores = 1;  // measured with two ranks on one core
  check(4, 2, 1);
  s.costs.threads->cores = 8;
  s.costs.collective_ranks = 16;  // measured with two on each core, used with one
  check(8, 0.5, 1);
  CHECK(parse_costs(to_json_text(s.costs), "costs.json") == s.costs);
}

TEST_CASE("calibrated curves are interpolated, extended and never fall") {
  const std::vector<CurvePoint> line = {{1e6, 1e-3}, {1e9, 1.0}};  // slope 1: proportional, inside and outside
  CHECK(interpolate(line, 1e8) == relative(0.1));
  CHECK(interpolate(line, 1e12) == relative(1e3));
  CHECK(interpolate(line, 1e3) == relative(1e-6));
  const std::vector<CurvePoint> bent = {{1, 1}, {10, 1}, {1000, 100}};  // flat, then slope 1
  CHECK(interpolate(bent, 0.01) == relative(1));
  CHECK(interpolate(bent, 100) == relative(10));
  const std::vector<CurvePoint> noisy = {
      {1, 2}, {10, 1}, {100, 4}};  // the dip is lifted to 2: from (10, 2) to (100, 4)
  CHECK(interpolate(noisy, 5) == relative(2));
  CHECK(interpolate(noisy, 31.622776601683793) == relative(2 * std::sqrt(2.0)));
  CHECK(interpolate(std::vector<CurvePoint>{{4, 8}}, 1) == relative(2));
  CHECK(interpolate(line, 0) == 0);
  for (double x = 0.5, last = 0; x < 1000; x *= 1.1) {  // never falls
    CHECK(interpolate(noisy, x) >= last);
    last = interpolate(noisy, x);
  }
  CHECK_THROWS_AS(check_curve(std::vector<CurvePoint>{{1, 1}, {1, 2}}, "x"), InputError);
  CHECK_THROWS_AS(check_curve(std::vector<CurvePoint>{{1, 0}}, "x"), InputError);

  // A collective's curve of 2 ranks on 4: (3/4) / (1/2) = 1.5 times the bytes on the wire.
  Costs costs = host_costs();
  const Demand two = collective_demand({CollectiveKind::all_gather, Bytes(1000000), 2, 2}, host_cluster(), costs);
  const Demand four = collective_demand({CollectiveKind::all_gather, Bytes(1000000), 4, 4}, host_cluster(), costs);
  CHECK(two.alone.count() == relative(1e-3));
  CHECK(four.alone.count() == relative(1.5e-3));
}

TEST_CASE("on GPUs, products and attention measured in one dtype say nothing of another") {
  Setup s;
  const auto of = [&](bool measured, DType plan) {
    s.costs = default_costs(s.cluster);
    if (measured) {
      for (auto& curve : s.costs.matmul_curve) curve = {{1e6, 1e-6}, {1e9, 1e-3}};
      s.costs.kernels.assign(2 * kOpKinds, {});
      for (const bool backward : {false, true})  // attention, whose rate is the dtype's, and gelu, which moves bytes
        for (const OpKind kind : {OpKind::attention, OpKind::gelu})
          s.costs.kernels[2 * static_cast<std::size_t>(kind) + (backward ? 1 : 0)] = {
              Seconds(1e-3), FlopsPerSecond(1e12), BytesPerSecond(1e12)};
      s.costs.measured_dtype = DType::bf16;
    }
    s.plan.param_dtype = plan;
    const Program program = lower(s.model, s.plan, s.impl);
    return std::pair{program.steady_step, demands_of(program.steady_step, program, s.context())};
  };
  for (const DType plan : {DType::bf16, DType::f32}) {
    const auto [step, measured] = of(true, plan);
    const auto [same, formula] = of(false, plan);
    int kinds = 0;
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      if (step.ops[i].graph_op < 0 || !is_kernel(step.ops[i].action)) continue;
      const OpKind kind = s.model.ops[static_cast<std::size_t>(step.ops[i].graph_op)].kind;
      const bool products = kind == OpKind::linear || kind == OpKind::attention;
      if (!products && kind != OpKind::gelu) continue;
      kinds |= products ? 1 : 2;
      CAPTURE(i);
      CHECK((measured[i].alone == formula[i].alone) == (products && plan == DType::f32));
    }
    CHECK(kinds == 3);
  }
  CHECK(parse_costs(to_json_text(s.costs), "a file") == s.costs);
  s.costs.measured_dtype = DType::bf16;
  CHECK(parse_costs(to_json_text(s.costs), "a file").measured_dtype == DType::bf16);
  s.costs.measured_dtype = DType::i64;
  CHECK_THROWS_AS(parse_costs(to_json_text(s.costs), "a file"), InputError);
}

TEST_CASE("measured products say nothing of products in 8 bits, which not every GPU has") {
  Setup s;
  Op op;
  op.kind = OpKind::linear;
  op.shape.in = op.shape.out = 4096;
  op.shape.float8 = Float8Recipe::tensorwise;
  s.plan.param_dtype = DType::bf16;
  s.cluster = load_cluster("dgx-h100", 2);
  s.costs = default_costs(s.cluster);
  const Implementation& titan = find_implementation("torchtitan", true, "test");
  const auto takes = [&](Direction direction) {
    return kernel_demand(op, direction, 2, {s.model, s.plan, titan, s.cluster, s.costs}).alone.count();
  };
  const double forward = takes(Direction::forward), backward = takes(Direction::backward);
  for (auto& curve : s.costs.matmul_curve) curve = {{1e6, 1e-6}, {1e9, 1e-3}};
  for (const auto measured : {std::optional<DType>(), std::optional(DType::bf16)}) {
    s.costs.measured_dtype = measured;
    CHECK(takes(Direction::forward) == forward);
    CHECK(takes(Direction::backward) == backward);
  }
  s.cluster = load_cluster("dgx-a100-80", 2);
  s.costs.platform = s.cluster.gpu.name;
  CHECK_THROWS_AS(takes(Direction::forward), InputError);
}

TEST_CASE("a product that moves more than a cube of as many flops takes longer") {
  Setup s;
  s.cluster = host_cluster();
  s.costs = host_costs();
  const Program program = lower(s.model, s.plan, s.impl);
  const Demands before = demands_of(program.steady_step, program, s.context());
  s.costs.matmul_beyond_cube[0] = BytesPerSecond(1e6);
  s.costs.matmul_beyond_cube[1] = BytesPerSecond(2e6);
  s.costs.matmul_beyond_cube[2] = BytesPerSecond(4e6);
  const Demands after = demands_of(program.steady_step, program, s.context());
  int products = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.graph_op < 0 || op.action == Action::add_gradient ||
        s.model.ops[static_cast<std::size_t>(op.graph_op)].kind != OpKind::linear) {
      CHECK(after[i].alone.count() == before[i].alone.count());
      continue;
    }
    ++products;
    const OpShape& shape = s.model.ops[static_cast<std::size_t>(op.graph_op)].shape;
    const double rows = 2 * 5, in = static_cast<double>(shape.in),
                 out = static_cast<double>(shape.out);  // 2 sequences of 5 tokens
    const double beyond =
        4 * (rows * in + in * out + rows * out - 3 * std::cbrt(rows * in * out) * std::cbrt(rows * in * out));
    CHECK(beyond >= 0);
    const double rates = op.action == Action::backward ? 1 / 2e6 + 1 / 4e6 : 1 / 1e6;
    CHECK(after[i].alone.count() - before[i].alone.count() == relative(beyond * rates));
  }
  CHECK(products == 2 * 7);  // two of each of 3 blocks and the head, forward and backward
  CHECK(parse_costs(to_json_text(s.costs), "costs.json") == s.costs);
}

TEST_CASE("costs written to disk read back equal") {
  for (Costs c : {default_costs(h100(8)), host_costs()}) {
    c.source = "with \"quotes\" and \xc3\xbc";
    c.kernel_overhead = Seconds(0.1 + 0.2);  // every bit comes back
    const std::string text = to_json_text(c);
    CHECK(parse_costs(text, "costs.json") == c);
    CHECK(digest(parse_costs(text, "costs.json")) == digest(c));
    for (std::size_t cut = 0; cut + 2 < text.size(); cut += 7)
      CHECK_THROWS_AS((void)parse_costs(text.substr(0, cut), "costs.json"), InputError);
  }
  const std::string text = to_json_text(host_costs());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    return changed.replace(at, from.size(), to);
  };
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    CHECK_THROWS_WITH_AS((void)parse_costs(with(from, to), "costs.json"), doctest::Contains(words), InputError);
  };
  refused("\"platform\"", "\"plattform\"", "platform");
  refused("costs/1", "costs/2", "costs/2");
  refused("\"collective_ranks\": 2", "\"collective_ranks\": -2", "collective_ranks");
  refused("\"collective_ranks\": 2", "\"collective_ranks\": 0", "at least 2");
  refused("\"memory_efficiency\": 0.85", "\"memory_efficiency\": 1.5", "memory_efficiency");
  refused("\"embedding\"", "\"embeding\"", "is no kind of op");
  refused("\"backward\"", "\"forward\"", "occur twice");
  refused("1000000.0", "1.0", "sizes must increase");
}

TEST_CASE("costs that no machine has are refused with file and field, when they are read") {
  const auto refused = [](const Costs& costs, const char* words) {
    CHECK_THROWS_WITH_AS((void)parse_costs(to_json_text(costs), "costs.json"), doctest::Contains(words), InputError);
  };
  const Costs host = host_costs(), gpu = default_costs(h100(8));
  for (const double slow : {1e-300, 1e-9, 999.0}) {
    Costs c = host;
    c.copy.byte_rate = BytesPerSecond(slow);
    refused(c, "costs.json: copy.bytes_per_s: ");
    c = host;
    c.kernels[2 * static_cast<std::size_t>(OpKind::embedding)].flops_rate = FlopsPerSecond(slow);
    refused(c, ".flops_per_s: ");
    c = host;
    c.matmul_beyond_cube[1] = BytesPerSecond(slow);
    refused(c, "costs.json: matmul.beyond_cube_bytes_per_s.backward_input: ");
  }
  Costs c = gpu;
  c.matmul_efficiency = 1e-300;
  refused(c, "costs.json: matmul_efficiency: ");
  c = gpu;
  c.memory_efficiency = -0.5;
  refused(c, "costs.json: memory_efficiency: ");
  c = host;
  c.matmul_curve[0].back().seconds = 1e7;
  refused(c, "costs.json: matmul.forward[");
}

TEST_CASE("a curve that says of larger sizes what no number holds is refused before it is simulated") {
  Setup s;
  const Program program = lower(s.model, s.plan, s.impl);
  const auto refused = [&](const char* words) {
    CHECK_THROWS_WITH_AS((void)demands_of(program.steady_step, program, s.context()), doctest::Contains(words),
                         InputError);
  };
  s.costs.matmul_curve[0] = {{1, 1e-6}, {1.0000001, 1}};
  refused("costs: operation ");
  s.cluster.gpu.memory_bandwidth = BytesPerSecond(1e-300);
  s.costs = default_costs(s.cluster);
  refused("cluster: operation ");
}

TEST_CASE("float8 linear layers: products at the 8-bit rate, casts by their bytes, the others as before") {
  Setup s = in_8_bits(1979e12);
  Op linear;
  linear.kind = OpKind::linear;
  linear.shape.in = 4096;
  linear.shape.out = 16384;
  const Implementation& titan = find_implementation("torchtitan", true, "test");
  const auto seconds = [&](Float8Recipe recipe, Direction direction, bool gathered = false) {
    Op op = linear;
    op.shape.float8 = recipe;
    op.shape.float8_weight = gathered;
    return kernel_demand(op, direction, 1, {s.model, s.plan, titan, s.cluster, s.costs}).alone.count();
  };
  using enum Float8Recipe;
  // 32 * 128 tiles of 256 x 128 on 132 SMs are 32 waves; k = 4096 and, at twice the rate, twice the 256 of a tile's
  // fixed time (1979 over 989). Casts: 3 bytes of 8192 x 4096 inputs and 5 of 4096 x 16384 weights, or none of weights
  // that come in 8 bits. Launches of 2 us.
  const double wave = 65536 * (4096 + 256 * 1979.0 / 989) / (0.7 * 1979e12 / 132), input = 3.0 * 8192 * 4096,
               weight = 5.0 * 4096 * 16384, memory = 0.85 * 3.35e12;
  CHECK(seconds(tensorwise, Direction::forward) == relative(32 * wave + (input + weight) / memory + 6 * 2e-6));
  CHECK(seconds(tensorwise, Direction::forward, true) == relative(32 * wave + input / memory + 3 * 2e-6));
  const double faster = seconds(none, Direction::backward) / seconds(tensorwise, Direction::backward);
  CHECK(faster > 1.2);  // torchtitan publishes steps 1.3 to 1.5 times as fast, other kernels included
  CHECK(faster < 2.2);
  // Scales by row: more casts in backward; the gradient of the weight in 16 bits costs more than they do.
  CHECK(seconds(rowwise, Direction::backward) > seconds(tensorwise, Direction::backward));
  CHECK(seconds(rowwise_with_gw_hp, Direction::backward) > seconds(rowwise, Direction::backward));
  CHECK(seconds(rowwise_with_gw_hp, Direction::backward) < seconds(none, Direction::backward));
  s.cluster.gpu.fp8 = FlopsPerSecond(0);
  CHECK_THROWS_WITH_AS((void)seconds(tensorwise, Direction::forward), doctest::Contains("multiplies no 8-bit numbers"),
                       InputError);
  CHECK(seconds(none, Direction::forward) > 0);
}

// torchao's MXFP8Linear: two casts in forward, four in backward, each 2 + 1 + 1/32 bytes per element at 5.7 TB/s where
// memory-bound kernels are taken for 6.8; a cast, and one copy of its scales, beside each factor of each product.
TEST_CASE("mxfp8: three products at one rate, six casts, on Blackwell alone") {
  Setup s = in_8_bits(5000e12);
  s.cluster.gpu.compute_capability = 100;
  Op linear;
  linear.kind = OpKind::linear;
  linear.shape = {.in = 4096, .out = 16384};
  linear.shape.float8 = Float8Recipe::mxfp8;
  const Implementation& titan = find_implementation("torchtitan", true, "test");
  const auto seconds = [&](Direction direction) {
    return kernel_demand(linear, direction, 1, {s.model, s.plan, titan, s.cluster, s.costs}).alone.count();
  };
  const double x = 8192.0 * 4096, y = 8192.0 * 16384, w = 4096.0 * 16384;
  const double byte = (2 + 1 + 1.0 / 32) * 6.8 / 5.7 / (0.85 * 3.35e12), launch = 2e-6;
  const double products = seconds(Direction::forward) - (x + w) * byte - 5 * launch;
  const double rate = 2 * x * 16384 / products;
  CHECK(rate < s.costs.fp8_matmul_efficiency * 5000e12 * 2850 / 3433);
  CHECK(rate > 0.7 * s.costs.fp8_matmul_efficiency * 5000e12 * 2850 / 3433);  // tiles and waves
  // The same by one scale: casts of 3 bytes per input and 5 per weight, and six launches.
  linear.shape.float8 = Float8Recipe::tensorwise;
  const double by_tensor = seconds(Direction::forward) - (3 * x + 5 * w) / (0.85 * 3.35e12) - 6 * launch;
  linear.shape.float8 = Float8Recipe::mxfp8;
  CHECK(products / by_tensor == doctest::Approx(3433.0 / 2850).epsilon(0.01));
  const double both = seconds(Direction::backward) - (2 * y + x + w) * byte - 10 * launch;
  CHECK(both > 1.6 * products);  // longer sums spread a tile's fixed time
  CHECK(both < 2.2 * products);
  // What a cast leaves: 8 bits, and scales in two orders. Backward at its worst: the weight's gradient, its two
  // factors.
  const OpFacts f = facts(titan, linear, {1, 8192, 2, 1});
  const auto scaled = [](double elements) { return static_cast<std::int64_t>(elements * 17 / 16); };
  CHECK(f.saved_inputs == 0b1);
  CHECK(f.saved_extra_bytes == 0);
  CHECK(f.forward_scratch_bytes == scaled(x) + scaled(w));
  CHECK(f.backward_scratch_bytes == scaled(y) + scaled(x));
  const OpFacts eager = facts(find_implementation("torchtitan", false, "test"), linear, {1, 8192, 2, 1});
  CHECK(eager.backward_scratch_bytes == 2 * scaled(y) + scaled(x) + scaled(w));
  CHECK(eager.forward_launches == 7);
  CHECK(eager.backward_launches == 14);
  s.cluster.gpu.compute_capability = 90;
  CHECK_THROWS_WITH_AS((void)seconds(Direction::forward), doctest::Contains("mxfp8 needs a Blackwell GPU"), InputError);
}

// TransformerEngine's te.Linear, as its sources say: a cast reads 2 bytes and writes 1 by rows and 1 by columns; of the
// input and the weight before the first product, of the gradient before the other two, which accumulate in fp32.
TEST_CASE("linear layers of TransformerEngine: one pass per cast, and 8 bits kept for backward, of the weight, too") {
  Setup s = in_8_bits(1979e12);
  Op op;
  op.kind = OpKind::linear;
  op.shape.in = 4096;
  op.shape.out = 16384;
  op.shape.float8 = Float8Recipe::delayed;
  const Implementation& foundry = find_implementation("foundry", false, "test");
  const Workload work{1, 8192, 2, 1};
  const double x = 8192.0 * 4096, w = 4096.0 * 16384, y = 8192.0 * 16384;
  const OpFacts f = facts(foundry, op, work);
  CHECK(f.saved_inputs == 0);
  CHECK(f.saved_extra_bytes == static_cast<std::int64_t>(x + w));
  CHECK(f.forward_scratch_bytes == static_cast<std::int64_t>(x + w));
  CHECK(f.backward_scratch_bytes == static_cast<std::int64_t>(2 * y));
  const auto seconds = [&](Direction direction) {
    return kernel_demand(op, direction, 1, {s.model, s.plan, foundry, s.cluster, s.costs}).alone.count();
  };
  // Waves as in the test before, of 16384 x 8192, 8192 x 4096 and 16384 x 4096.
  const double rate = 0.7 * 1979e12 / 132, memory = 0.85 * 3.35e12, fixed = 256 * 1979.0 / 989;
  CHECK(seconds(Direction::forward) == relative(32 * 65536 * (4096 + fixed) / rate + 4 * (x + w) / memory + 8 * 2e-6));
  CHECK(seconds(Direction::backward) ==
        relative(1.15 * 65536 * (8 * (16384 + fixed) + 16 * (8192 + fixed)) / rate + 4 * y / memory + 7 * 2e-6));
}

// Composer computes two metrics beside the loss, under the same autocast as the model: te.fp8_autocast casts nothing.
TEST_CASE("metrics of llm-foundry read bf16 logits where te.fp8_autocast stands in the place of torch.autocast") {
  const Implementation& foundry = find_implementation("foundry", false, "test");
  const Workload work{2, 512, 2, 1};
  Op op;
  op.kind = OpKind::cross_entropy;
  op.shape.vocab = 50368;
  const std::int64_t cast = facts(foundry, op, work).after_backward.traffic_bytes;
  op.shape.float8 = Float8Recipe::delayed;
  const std::int64_t n = 1024 * 50368, without = facts(foundry, op, work).after_backward.traffic_bytes;
  // Each: a log-softmax that reads three times and writes once, of 2 bytes, and under torch.autocast a cast of its
  // result, 2 + 4.
  CHECK(without == 2 * n * 4 * 2);
  CHECK(cast - without == 2 * n * 6);
  ModelGraph model = load_model("mpt-125m-bench");
  ShardingPlan plan;
  plan.float8.recipe = Float8Recipe::delayed;
  model = local_model(model, plan);
  for (const Op& each : model.ops)
    CHECK((each.shape.float8 == Float8Recipe::delayed) ==
          (each.kind == OpKind::cross_entropy || (each.kind == OpKind::linear && each.shape.out != 50368)));
}

TEST_CASE("between steps the host takes its time and waits for small collectives of all ranks") {
  const ModelGraph model = load_model("mpt-125m-bench");
  ShardingPlan plan = toy::plan(model, 16);
  plan.dialect = Dialect::fsdp1;
  plan.seq_len = 512;
  const ClusterSpec cluster = cluster_of(load_gpu("a100-sxm-80", "test"), 16, 8);
  const Costs costs = default_costs(cluster);
  const auto after = [&](const Implementation& i) {
    const Program program = lower(model, plan, i);
    const CostContext context{model, plan, i, cluster, costs};
    double found = -1;
    for (const Operation& op : program.steady_step.ops)
      if (op.action == Action::read_loss)
        found = demand_of(op, program.steady_step, program, context).host_after.count();
    return found;
  };
  const double each = collective_demand({CollectiveKind::all_reduce, Bytes(8), 16, 8}, cluster, costs).alone.count();
  CHECK(each > 20e-6);  // NCCL's latency and a step's skew
  CHECK(after(find_implementation("foundry", false, "test")) == relative(5e-3 * costs.host_scale + 11 * each));
  CHECK(after(find_implementation("hf", false, "test")) == 0);
}
