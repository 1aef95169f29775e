// A job's names are ids, and its programs are lowered once per role.
#include "planner/job.h"

#include <doctest/doctest.h>

#include <set>

#include "models/catalog.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "tests/support/refusal.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

Job toy_job(std::int64_t shard, std::int64_t replicate = 1, Reshard reshard = Reshard::automatic) {
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = toy::plan(model, shard, replicate);
  for (Unit& unit : plan.units) unit.reshard_after_forward = reshard;
  check(plan, model);
  return resolve(model, plan, native_implementation(), load_cluster("host", shard * replicate));
}

// Equal in all but the rank that they were lowered for.
bool same_program(const Program& a, Program b) {
  b.rank = a.rank;
  return a == b;
}

std::size_t lowered_for_all(Programs& programs) {
  std::set<const Program*> roles;
  for (std::int64_t r = 0; r < programs.job().plan.ranks(); ++r) roles.insert(&programs.of(r));
  return roles.size();
}

}  // namespace

TEST_CASE("ids are those of the modules and parameters that a plan names") {
  const ModelGraph model = load_model("tiny-llama");
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
  plan.checkpointed = {"model.layers.1", "model.layers.3"};
  plan.ignored = {"model.layers.0.mlp", "model.norm.weight"};
  plan.shard_dims = {{"lm_head.weight", 1}};
  const PlanIds ids = resolve_ids(plan, model);
  REQUIRE(ids.units.size() == plan.units.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    REQUIRE(ids.units[u].size() == plan.units[u].modules.size());
    for (std::size_t m = 0; m < ids.units[u].size(); ++m)
      CHECK(model.modules[static_cast<std::size_t>(ids.units[u][m])].name == plan.units[u].modules[m]);
  }
  CHECK(ids.checkpointed ==
        std::vector<std::int32_t>{model.find_module("model.layers.1"), model.find_module("model.layers.3")});
  CHECK(ids.ignored_modules == std::vector<std::int32_t>{model.find_module("model.layers.0.mlp")});
  REQUIRE(ids.ignored_parameters.size() == 1);
  CHECK(model.parameters[static_cast<std::size_t>(ids.ignored_parameters.front())].name == "model.norm.weight");
  for (std::size_t p = 0; p < model.parameters.size(); ++p)
    CHECK(ids.shard_dims[p] == (model.parameters[p].name == "lm_head.weight" ? 1 : 0));
}

TEST_CASE("the index of modules finds what the linear search finds") {
  const ModelGraph model = load_model("tiny-mixtral");
  const ModuleIndex index(model);
  for (const Module& m : model.modules) CHECK(index.find(m.name) == model.find_module(m.name));
  CHECK(index.find("model.layers.99") == -1);
}

TEST_CASE("names that the model does not have are refused with the plan's file and field") {
  const ModelGraph model = load_model("tiny-llama");
  const ShardingPlan right = naive_plan(model, {.ranks = 2, .seq_len = 16});
  const auto refusal = [&](const auto& change) {
    ShardingPlan plan = right;
    change(plan);
    const std::string resolved = testing::refusal([&] { (void)resolve_ids(plan, model, "my.json"); });
    CHECK(testing::refusal([&] { check(plan, model, "my.json"); }) == resolved);
    return resolved;
  };
  CHECK(refusal([](ShardingPlan& p) { p.units[1].modules = {"nope"}; }) ==
        "my.json: units[1].modules: no module is named 'nope'; run `fsdp-plan show model NAME` for the names");
  CHECK(refusal([](ShardingPlan& p) { p.checkpointed = {"nope"}; }).starts_with("my.json: checkpointed: no module"));
  CHECK(refusal([](ShardingPlan& p) { p.ignored = {"nope"}; }).starts_with("my.json: ignored: no module or parameter"));
  CHECK(refusal([](ShardingPlan& p) {
          p.shard_dims = {{"lm_head.weight", 2}};
        }).starts_with("my.json: shard_dims: 'lm_head.weight' has no dimension 2"));
}

TEST_CASE("what only layouts find of a plan names its file, too") {
  const ModelGraph model = load_model("tiny-llama");
  ShardingPlan plan = naive_plan(model, {.ranks = 3, .seq_len = 16});
  plan.shard_dims = {{"lm_head.weight", 1}};
  CHECK(testing::refusal([&] { check(plan, model, "my.json"); }).starts_with("my.json: shard_dims: dimension 1 of"));
}

TEST_CASE("every rank's program is the one that lowering it alone gives, and ranks of one role share it") {
  for (const std::int64_t shard : {1, 2, 3, 4, 7}) {
    CAPTURE(shard);
    Programs programs(toy_job(shard, 2));
    const Job& job = programs.job();
    for (std::int64_t r = 0; r < job.plan.ranks(); ++r)
      CHECK(same_program(programs.of(r), lower(job.model, job.plan, job.implementation, r)));
    CHECK(lowered_for_all(programs) <= static_cast<std::size_t>(shard));  // replicas repeat the roles of a shard group
    CHECK(&programs.of(0) == &programs.of(shard));
    CHECK(programs.of(shard).rank == 0);  // who asked first
  }
}

TEST_CASE("a role is lowered once, however often its ranks are asked for") {
  Programs programs(toy_job(7, 2));
  CHECK(programs.lowerings() == 0);
  const std::size_t roles = lowered_for_all(programs);
  CHECK(programs.lowerings() == static_cast<std::int64_t>(roles));
  CHECK(lowered_for_all(programs) == roles);
  CHECK(programs.lowerings() == static_cast<std::int64_t>(roles));
}

TEST_CASE("the order in which ranks are asked for changes nothing") {
  Programs forward(toy_job(7)), backward(toy_job(7));
  for (std::int64_t r = 0; r < 7; ++r) (void)forward.of(r);
  for (std::int64_t r = 6; r >= 0; --r) (void)backward.of(r);
  for (std::int64_t r = 0; r < 7; ++r) CHECK(same_program(forward.of(r), backward.of(r)));
}

TEST_CASE("under an integer reshard, places in a small group are roles of their own") {
  Programs whole(toy_job(4)), halves(toy_job(4, 1, Reshard{2}));
  const Job& job = halves.job();
  for (std::int64_t r = 0; r < 4; ++r)
    CHECK(same_program(halves.of(r), lower(job.model, job.plan, job.implementation, r)));
  CHECK(&halves.of(0) != &halves.of(1));
}
