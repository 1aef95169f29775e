// Parameters with another mesh than the others': experts over a part of the ranks, dense parameters over all of them,
// two groups in one unit (PyTorch's shard_placement_fn that returns a mesh for each parameter).
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "executor/checkpoint/size.h"
#include "planner/plan/naive_plan.h"
#include "tests/support/checkpoint_support.h"
#include "tests/support/mlp_model.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Room for all tokens: what is dropped would depend on how the batch is split.
ModelGraph experts_model(const char* family, int experts, int layers) {
  const bool mixtral = std::string_view(family) == "mixtral";
  return model_from_config(fmt::format(
                               R"({{"model_type": "{}", "capacity_factor": {}, "hidden_act": "silu", "hidden_size": 24,
               "intermediate_size": 20, "max_position_embeddings": 64, "num_attention_heads": 4,
               "num_experts_per_tok": 2, "num_hidden_layers": {}, "num_key_value_heads": 2, "{}": {},
               "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 41}})",
                               family, experts / 2.0, layers, mixtral ? "num_local_experts" : "num_experts", experts),
                           "experts_model");
}

ShardingPlan with_experts_over(std::int64_t ranks, const ModelGraph& model, const PlanWords& words) {
  ShardingPlan plan = make_plan(model, in_double(words));
  set_expert_shard(plan, model, ranks, "test");
  return plan;
}

// Operations of a step, by communicator.
std::int64_t over(const ModelGraph& model, const ShardingPlan& plan, Action action, Communicator comm) {
  const Program program = lower(model, plan, native_implementation());
  return std::count_if(program.steady_step.ops.begin(), program.steady_step.ops.end(),
                       [&](const Operation& op) { return op.action == action && op.comm == comm; });
}

}  // namespace

TEST_CASE("test_shard_placement_fn_tp_ep: experts over 2 ranks and dense parameters over 4 and 8, by reshard mode") {
  for (const char* family : {"mixtral", "olmoe"}) {
    const ModelGraph model = experts_model(family, 4, 2);
    for (const std::int64_t shard : {4, 8})
      for (const Reshard reshard : {Reshard::automatic, Reshard::yes, Reshard::no}) {
        const ShardingPlan plan = with_experts_over(2, model, {.shard = shard, .reshard = reshard});
        check_parity(model, plan);
        const int gathers = reshard == Reshard::no ? 1 : 2;
        CHECK(over(model, plan, Action::all_gather, Communicator::own_shard) == 2 * gathers);
        CHECK(over(model, plan, Action::reduce_scatter, Communicator::own_shard) == 2);
        CHECK(over(model, plan, Action::all_reduce, Communicator::own_replicate) == 2);
        CHECK(over(model, plan, Action::all_reduce, Communicator::replicate) == 0);
      }
  }
}

TEST_CASE("experts over a mesh of their own: replicas, accumulation, recomputation, clipping, units of experts alone") {
  const ModelGraph model = experts_model("mixtral", 4, 2);
  const std::vector<std::int64_t> two = {1, 1};
  const auto check = [&](std::int64_t ranks, const PlanWords& words) {
    CAPTURE(ranks);
    check_parity(model, with_experts_over(ranks, model, words));
  };
  check(2, {.shard = 4, .replicate = 2, .clip_norm = 0.05});
  check(4, {.shard = 2, .replicate = 2, .micro_batches = two});
  check(1, {.shard = 4, .clip_norm = 0.05});
  check(2, {.shard = 1, .replicate = 4});
  check(2, {.shard = 4, .micro_batches = two, .grad_sync = GradSync::last});
  check(2, {.shard = 4, .micro_batches = two, .grad_sync = GradSync::reduce_scatter_only});
  check(2, {.shard = 4, .checkpointing = "full", .reshard = Reshard::yes, .clip_norm = 0.05});
  check(2, {.shard = 4, .wrap = "root"});
  check(2, {.shard = 4, .wrap = "titan", .forward_prefetch = 1, .backward_prefetch = 2});
  check(2, {.shard = 4, .wrap = "class:MixtralExperts", .reshard = Reshard::yes});
  check(8, {.shard = 2, .replicate = 4});
  const ModelGraph uneven = experts_model("mixtral", 3, 1);
  check_parity(uneven, with_experts_over(2, uneven, {.shard = 4, .clip_norm = 0.05}));
}

TEST_CASE("experts over a mesh of their own: other parts of a unit, and offloaded shards") {
  const ModelGraph model = mlp({.blocks = {{5, 9, 5}, {5, 9, 5}}, .vocab = 7});
  ShardingPlan plan = make_plan(model, in_double({.shard = 4, .reshard = Reshard::yes, .clip_norm = 0.05}));
  const auto with_group = [&](const std::string& module, const std::string& unit) {
    ShardingPlan p = plan;
    Unit group{{module}};
    group.shard = 2;
    group.group_of = unit;
    p.units.insert(p.units.begin(), group);
    return p;
  };
  for (const Unit& unit : plan.units)
    for (const Module& m : model.modules) {
      if (m.op_begin == m.op_end || m.container || unit.modules.front().empty() ||
          m.name.find(unit.modules.front() + ".") != 0)
        continue;
      CAPTURE(m.name);
      for (const bool offload : {false, true}) {
        ShardingPlan p = with_group(m.name, unit.modules.front());
        p.offload = offload;
        check_parity(model, p);
      }
    }
}

TEST_CASE("experts over a mesh of their own: saved once, whole, and gone on from at any other mesh, and back") {
  const ModelGraph model = experts_model("mixtral", 4, 2);
  const PlanWords of_four{.shard = 4, .clip_norm = 0.05}, of_two{.shard = 2, .clip_norm = 0.05};
  ShardingPlan own = with_experts_over(2, model, of_four), plain = make_plan(model, in_double(of_two));
  plain.micro_batches = {2};  // the same sequences a step
  const auto steps = [](RunOptions options, int n) {
    options.warmup_steps = 1;
    options.steps = n - 1;
    options.keep_parameters = true;
    return options;
  };
  const RunResult straight = execute(model, own, steps({}, 4));
  for (const auto& [from, to] : {std::pair{own, own}, std::pair{own, plain}, std::pair{plain, own}}) {
    const Folder folder;
    const RunResult before = execute(model, from, steps(saving(model, from, folder / "ckpt"), 2));
    const Checkpoint saved(folder / "ckpt");
    saved.verify();
    std::int64_t all = 0, most = 0;
    for (const SavedFile& f : saved.manifest().files) {
      all += f.bytes - f.header_bytes;
      most = std::max(most, f.bytes - f.header_bytes);
    }
    const CheckpointSize size = checkpoint_size(model, from);
    CHECK(size.bytes == all);
    CHECK(size.largest_rank_bytes == std::optional<std::int64_t>(most));
    const RunResult after = execute(model, to, steps(resuming(model, to, folder / "ckpt"), 2));
    for (std::size_t i = 0; i < straight.parameters.size(); ++i) {
      CAPTURE(straight.parameters[i].name);
      CHECK(distance(after.parameters[i].values, straight.parameters[i].values) <= 1e-10);
    }
  }
}

TEST_CASE("meshes of single units that cannot be are refused by field, with a remedy") {
  const ModelGraph model = experts_model("mixtral", 4, 2);
  const ShardingPlan good = with_experts_over(2, model, {.shard = 4});
  check(good, model);
  CHECK(parse_plan(to_json_text(good), "plan.json") == good);
  const auto refused = [&](const std::function<void(ShardingPlan&)>& change) {
    ShardingPlan plan = good;
    change(plan);
    return refusal([&] { check(plan, model); });
  };
  const auto has = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
  CHECK(good.units[0].group_of == "model.layers.0");
  const std::size_t root = good.units.size() - 1;
  CHECK(has(refused([](auto& p) { p.units[0].shard = 3; }), "3 ranks do not divide the 4"));
  CHECK(has(refused([](auto& p) { p.units[0].shard = 1; }), "units[2].shard"));
  CHECK(has(refused([](auto& p) { p.units[0].shard = p.units[2].shard = 4; }), "shards over 4 ranks already"));
  CHECK(has(refused([](auto& p) { p.units[0].shard = 0; }), "units[0].group_of"));
  CHECK(has(refused([](auto& p) { p.units[0].group_of = "model.layers.1"; }), "belong to the unit"));
  CHECK(has(refused([](auto& p) { p.units[0].group_of = "nowhere"; }), "belong to the unit"));
  CHECK(has(refused([](auto& p) { p.units[0].grad_sync = GradSync::last; }), "no switches of its own"));
  CHECK(has(refused([](auto& p) { p.units[0].forward_prefetch = {""}; }), "units[0]"));
  CHECK(has(refused([](auto& p) { p.units[3].forward_prefetch = {"model.layers.0.mlp.experts"}; }), "first module"));
  CHECK(has(refused([](auto& p) { p.units[1].reshard_after_forward = {2}; }), "units[0].group_of"));
  CHECK(has(refused([](auto& p) { p.units[1].shard = 2; }), "units[0].group_of"));
  CHECK(has(refused([&](auto& p) { p.units[root].shard = 2, p.units[root].reshard_after_forward = {2}; }),
            "reshard_after_forward"));
  CHECK(has(refused([](auto& p) { p.torch = {2, 14}; }), "PyTorch 2.15 only"));
  CHECK(has(refused([](auto& p) { p.separate_reduce_scatter = true; }), "separate_reduce_scatter"));
  CHECK(has(refused([](auto& p) { p.clip_norm = 1, p.clip_norm_type = INFINITY; }), "largest of all gradients"));
  CHECK(has(refused([](auto& p) { p.dialect = Dialect::ddp, p.mesh = {{"replicate", 4}}; }), "use fsdp2"));
  CHECK(has(refused([](auto& p) { p.dialect = Dialect::fsdp1; }), "use fsdp2"));
  CHECK(has(refused([](auto& p) { p.mesh = {{"shard", 4}, {"tensor", 2}}; }), "tensor"));
  const ModelGraph dense = mlp({.blocks = {{5, 9, 5}}, .vocab = 7});
  ShardingPlan plan = make_plan(dense, {.shard = 4});
  CHECK(has(refusal([&] { set_expert_shard(plan, dense, 2, "test"); }), "has no experts"));
}
