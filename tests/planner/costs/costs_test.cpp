// Demands of a step's operations against closed forms.
#include "planner/costs.h"

#include <doctest/doctest.h>

#include <set>
#include <string>

#include "models/catalog.h"
#include "planner/costs/collectives/model.h"
#include "planner/costs/kernels.h"
#include "planner/lower.h"
#include "tests/planner/costs/priced.h"
#include "tests/support/relative.h"

using namespace priced;

namespace {

Bytes traffic(const Setup& s, const Op& op, bool backward) {
  const OpFacts f = facts(s.impl, op, {s.plan.micro_batches[0], s.plan.seq_len, size_of(s.plan.param_dtype)});
  return Bytes(backward ? f.backward_traffic_bytes : f.forward_traffic_bytes);
}

}  // namespace

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
