// Parameters with another mesh than the others': experts over a part of the ranks, dense parameters over all of them, two
// groups in one unit (PyTorch's shard_placement_fn that returns a mesh for each parameter).
#include <doctest/doctest.h>

#include "planner/plan/naive_plan.h"
#include "tests/support/mlp_model.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph experts_model(const char* family, int experts, int layers) {
  const bool mixtral = std::string_view(family) == "mixtral";
  return model_from_config(
      fmt::format(
          R"({{"model_type": "{}", "capacity_factor": 1.0, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 20,
               "max_position_embeddings": 64, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": {},
               "num_key_value_heads": 2, "{}": {}, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
               "tie_word_embeddings": false, "vocab_size": 41}})",
          family, layers, mixtral ? "num_local_experts" : "num_experts", experts),
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
