// What PyTorch's test_fully_shard_mixed_precision.py demands of units with a policy of their own, run. A plan's ranks
// are compared with one rank that takes their sequences one after the other: what a unit computes is rounded alike
// there, so that only the order of sums in fp64 differs. tests/PARITY.md says which test case stands for which of
// PyTorch's tests.
#include <algorithm>

#include "planner/tensor/local_model.h"
#include "tests/support/graph_builder.h"
#include "tests/support/mlp_model.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"
#include "tests/support/toy_model.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

Unit& unit_of(ShardingPlan& plan, const std::string& module) {
  const auto found =
      std::find_if(plan.units.begin(), plan.units.end(), [&](const Unit& u) { return u.modules.front() == module; });
  REQUIRE(found != plan.units.end());
  return *found;
}

ShardingPlan double_plan(const ModelGraph& model, const PlanWords& words) { return make_plan(model, in_double(words)); }

// Reduced and kept in fp64 whatever is computed in.
ShardingPlan plan_in(DType compute, const ModelGraph& model, const PlanWords& words) {
  ShardingPlan plan = double_plan(model, words);
  plan.param_dtype = compute;
  return plan;
}

// One rank, the same units, a micro-batch for each sequence of every rank.
ShardingPlan one_after_the_other(ShardingPlan plan) {
  plan.micro_batches.assign(static_cast<std::size_t>(plan.data_ranks() * plan.sequences_per_rank()), 1);
  plan.mesh = {{"replicate", 1}, {"shard", 1}};
  for (Unit& u : plan.units) u.reshard_after_forward = Reshard::automatic, u.grad_sync = GradSync::every;
  plan.grad_sync = GradSync::every;
  return plan;
}

// Every rank as predicted, and the result of one rank. The part that a rank's tokens have in the loss differs by the
// number of ranks: a power of two, which rounds nothing.
RunResult check_ranks(const ModelGraph& model, const ShardingPlan& plan) {
  CAPTURE(to_json_text(plan));
  RunResult result = execute(model, plan, five_steps());
  check_as_predicted(model, plan, result.measurement);
  check_equal(result, execute(model, one_after_the_other(plan), five_steps()), 1e-10);
  return result;
}

// In fp16, whose range ends above most gradients here: as predicted, and the losses of fp64.
void check_half(const ModelGraph& model, const ShardingPlan& plan) {
  CAPTURE(to_json_text(plan));
  const RunResult result = execute(model, plan, five_steps());
  check_as_predicted(model, plan, result.measurement);
  CHECK(distance(result.measurement.losses, reference(model, plan).measurement.losses) < 1e-2);
}

// How far the parameters of two runs are from each other.
double apart(const RunResult& a, const RunResult& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.parameters.size(); ++i)
    most = std::max(most, distance(a.parameters[i].values, b.parameters[i].values));
  return most;
}

struct Cast {
  DType from, to;
  friend bool operator==(const Cast&, const Cast&) = default;
};

// What the units' hooks cast in a forward of the model, in order.
std::vector<Cast> casts(const ModelGraph& model, const ShardingPlan& plan) {
  std::vector<Cast> list;
  for (const Op& op : local_model(model, plan).ops)
    if (op.kind == OpKind::cast) list.push_back({*op.shape.from, *op.shape.dtype});
  return list;
}

// The dtype of what the first op of a module reads.
DType called_with(const ModelGraph& model, const ShardingPlan& plan, const std::string& module, std::size_t input = 0) {
  const ModelGraph local = local_model(model, plan);
  const Module& m = local.modules[static_cast<std::size_t>(local.find_module(module))];
  const std::int32_t tensor = local.ops[static_cast<std::size_t>(m.op_begin)].inputs[input];
  return local.tensors[static_cast<std::size_t>(tensor)].dtype.value_or(plan.param_dtype);
}

ModelGraph blocks() { return mlp({.blocks = {{6, 9, 6}, {6, 7, 6}, {6, 9, 6}}, .vocab = 11}); }
constexpr const char* kMiddle = "layers.1";

// l2 is called with what l1 makes and with y, which comes around l1 and which is read once more behind l2.
class External : GraphBuilder {
 public:
  ModelGraph build() {
    begin("external", 11);
    module("", "Model", -1);
    const std::int32_t embed = module("embed", "Embedding", 0);
    const std::int32_t y = embedding(embed, parameter("embed.weight", embed, {11, 6}), 6);
    const std::int32_t l1 = module("l1", "Linear", 0);
    const std::int32_t x = linear(l1, y, {parameter("l1.weight", l1, {6, 6})}, 6, 6);
    const std::int32_t l2 = module("l2", "Toy", 0);
    g_.modules.back().block = true;
    const std::int32_t l = module("l2.l", "Linear", l2);
    const std::int32_t sum = pointwise(OpKind::add, l2, {x, y}, 6);
    const std::int32_t made = linear(l, sum, {parameter("l2.l.weight", l, {6, 6})}, 6, 6);
    const std::int32_t out = pointwise(OpKind::add, 0, {made, y}, 6);
    const std::int32_t head = module("head", "Linear", 0);
    loss(linear(head, out, {parameter("head.weight", head, {11, 6})}, 6, 11));
    return g_;
  }
};

}  // namespace

TEST_CASE("test_float16_on_one_submodule: one unit computes in another dtype, on 2 and 4 ranks") {
  const ModelGraph model = blocks();
  struct Pair {
    DType all, one;
  };
  for (const Pair& p : {Pair{DType::f64, DType::f32},
                        {DType::f64, DType::f16},
                        {DType::f32, DType::bf16},
                        {DType::bf16, DType::f32},
                        {DType::f16, DType::f64}}) {
    for (const std::int64_t ranks : {2, 4}) {
      for (const Reshard r : {Reshard::automatic, Reshard::yes, Reshard{2}}) {
        if (r.ranks >= ranks && r.ranks > 1) continue;
        ShardingPlan plan = plan_in(p.all, model, {.shard = ranks, .reshard = r});
        unit_of(plan, kMiddle).param_dtype = p.one;
        CHECK(casts(model, plan) == std::vector<Cast>{{p.all, p.one}, {p.one, p.all}});
        CHECK(called_with(model, plan, "layers.0") == p.all);
        CHECK(called_with(model, plan, kMiddle) == p.one);
        CHECK(called_with(model, plan, "layers.2") == p.all);
        if (p.all == DType::f16 || p.one == DType::f16) {
          check_half(model, plan);
          continue;
        }
        const RunResult result = check_ranks(model, plan);
        if (p.all != DType::f64) continue;
        const double from_double = apart(result, reference(model, plan));
        CHECK(from_double < 1e-5);
        CHECK(from_double > 1e-10);  // it has been rounded
      }
    }
  }
}

TEST_CASE("test_float16_on_one_submodule: casts are not the unit's own where the module before returns its dtype") {
  const ModelGraph model = blocks();
  ShardingPlan plan = double_plan(model, {.shard = 2});
  unit_of(plan, kMiddle).param_dtype = DType::f32;
  const RunResult next = check_ranks(model, plan);
  ShardingPlan returns = plan;  // the unit casts what it returns, and the next one has nothing to cast
  unit_of(returns, kMiddle).output_dtype = DType::f64;
  unit_of(returns, "layers.2").cast_forward_inputs = false;
  CHECK(casts(model, returns) == casts(model, plan));
  CHECK(equal_bits(check_ranks(model, returns), next));
  ShardingPlan uncast = plan;  // nobody casts for the unit: PyTorch raises in its first product
  unit_of(uncast, kMiddle).cast_forward_inputs = false;
  CHECK(holds(refusal([&] { check(uncast, model); }), "linear of 'layers.1.0' reads fp64, and its weights are fp32"));
}

TEST_CASE("test_submodules_with_external_inputs: what comes around the module before is cast, too") {
  const ModelGraph model = External().build();
  for (const std::int64_t ranks : {1, 2, 4}) {
    ShardingPlan plan = double_plan(model, {.shard = ranks});
    unit_of(plan, "l2").param_dtype = DType::f32;
    unit_of(plan, "l2").output_dtype = DType::f64;  // the head is the root's
    const Cast in{DType::f64, DType::f32}, out{DType::f32, DType::f64};
    CHECK(casts(model, plan) == std::vector<Cast>{in, in, out});
    CHECK(called_with(model, plan, "l2", 0) == DType::f32);
    CHECK(called_with(model, plan, "l2", 1) == DType::f32);
    CHECK(called_with(model, plan, "l1") == DType::f64);  // y itself stays as it is, for the sum behind l2, too
    const RunResult result = check_ranks(model, plan);
    const double from_double = apart(result, reference(model, plan));
    CHECK(from_double < 1e-6);
    CHECK(from_double > 1e-10);
  }
}

TEST_CASE("units with dtypes of their own: heads, embeddings, groups, replicas, recomputation, offload") {
  const ModelGraph model =
      small_llama({.layers = 3, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  const std::string block = "model.layers.1";
  const auto check_with = [&](const PlanWords& words, auto&& change) {
    ShardingPlan plan = double_plan(model, words);
    change(plan);
    check_ranks(model, plan);
  };
  const auto fp32_block = [&](ShardingPlan& p) { unit_of(p, block).param_dtype = DType::f32; };
  check_with({.shard = 2, .wrap = "titan"}, [](ShardingPlan& p) { unit_of(p, "model.norm").param_dtype = DType::f32; });
  check_with({.shard = 2, .wrap = "titan"},
             [](ShardingPlan& p) { unit_of(p, "model.embed_tokens").param_dtype = DType::f32; });
  check_with({.shard = 4, .wrap = "block:2"}, [](ShardingPlan& p) {
    p.units[0].param_dtype = DType::f32;
    p.units[0].reduce_dtype = DType::f64;
  });
  check_with({.shard = 2, .replicate = 2}, fp32_block);
  check_with({.shard = 2, .replicate = 2, .micro_batches = {1, 1}}, fp32_block);
  check_with({.shard = 2, .checkpointing = "full"}, fp32_block);
  check_with({.shard = 4, .micro_batches = {1, 1}, .grad_sync = GradSync::last}, fp32_block);
  check_with({.shard = 2, .reshard = Reshard::yes, .forward_prefetch = 2}, fp32_block);
  check_with({.shard = 2, .clip_norm = 0.05}, fp32_block);
  check_with({.shard = 2}, [&](ShardingPlan& p) { fp32_block(p), p.offload = true; });
}

TEST_CASE("a unit's own reduce dtype: gradients are rounded to it, and the other units' are not") {
  const ModelGraph model = blocks();
  ShardingPlan plan = double_plan(model, {.shard = 4});
  const RunResult exact = check_ranks(model, plan);
  unit_of(plan, kMiddle).reduce_dtype = DType::bf16;
  const RunResult result = execute(model, plan, five_steps());
  check_as_predicted(model, plan, result.measurement);
  for (std::size_t i = 0; i < exact.first_gradients.size(); ++i) {
    CAPTURE(exact.first_gradients[i].name);
    const double off = distance(result.first_gradients[i].values, exact.first_gradients[i].values);
    if (exact.first_gradients[i].name.starts_with(std::string(kMiddle) + ".")) {
      CHECK(off > 1e-4);
      CHECK(off < 2e-2);
    } else {
      CHECK(off == 0);
    }
  }
}

TEST_CASE("what is not known beside units of several dtypes is refused by name") {
  const ModelGraph model = blocks();
  ShardingPlan good = make_plan(model, {.shard = 2});
  unit_of(good, kMiddle).param_dtype = DType::bf16;
  check(good, model);
  const auto refused = [&](auto&& change, const char* says) {
    ShardingPlan plan = good;
    change(plan);
    const std::string text = refusal([&] { check(plan, model, "plan.json"); });
    CAPTURE(text);
    CHECK(holds(text, says));
  };
  refused([](ShardingPlan& p) { p.dialect = Dialect::fsdp1; }, "units[1].param_dtype");
  refused([](ShardingPlan& p) { p.torch = {2, 12}; }, "units[1].param_dtype");
  refused([](ShardingPlan& p) { p.units[1].reduce_dtype = DType::i64; }, "units[1].reduce_dtype");
  refused([](ShardingPlan& p) { p.units[3].output_dtype = DType::f32; }, "units[3].output_dtype");
  refused([](ShardingPlan& p) { p.ignored = {"head"}; }, "ignored");
  refused([](ShardingPlan& p) { p.loss_chunks = 1, p.loop.chunk_head = true; }, "loop.chunk_head");
  // What the root's head reads would be the last block's.
  refused([](ShardingPlan& p) { p.units[2].param_dtype = DType::bf16; },
          "units: the linear of 'head' reads bf16, and its weights are fp32");
  const ModelGraph toys = toy::model();
  ShardingPlan inner = toy::plan(toys, 2);
  inner.units.insert(inner.units.begin(), Unit{{"layers.0.down"}});
  inner.units[0].param_dtype = DType::bf16;
  CHECK(holds(refusal([&] { check(inner, toys); }), "the add of 'layers.0' reads bf16 beside fp32"));
  inner.units[0].output_dtype = DType::f32;
  check(inner, toys);
  inner.checkpointed = {"layers.0"};
  CHECK(holds(refusal([&] { check(inner, toys); }), "recomputing 'layers.0'"));
  const ModelGraph again = toy::model({.order = {0, 1, 0}});
  ShardingPlan twice = toy::plan(again, 2);
  twice.units[0].param_dtype = DType::bf16;
  CHECK(holds(refusal([&] { check(twice, again); }), "runs more than once"));
}
