// What plans may say of the training loop (LoopPlan): rules, and the file's form.
#include <doctest/doctest.h>

#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/plan.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "tests/support/refusal.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

ShardingPlan looped(const ModelGraph& model) {
  ShardingPlan plan = toy::plan(model, 4);
  plan.units.insert(plan.units.end() - 1, Unit{{"head"}});
  plan.micro_batches = {2, 2};
  return plan;
}

}  // namespace

TEST_CASE("rules: what a loop cannot do by hand is refused by field, problem and remedy") {
  const ModelGraph model = toy::model({.blocks = 2});
  struct Rule {
    std::string says;
    void (*breaks)(ShardingPlan&);
  };
  const Rule rules[] = {
      {"loop.forwards: 3 forwards per backward do not divide 2 micro-batches",
       [](ShardingPlan& p) { p.loop.forwards = 3; }},
      {"loop.forwards: 0 forwards", [](ShardingPlan& p) { p.loop.forwards = 0; }},
      {"loop.forwards: gradients that wait for a later backward",
       [](ShardingPlan& p) {
         p.loop.forwards = 2, p.micro_batches = {1, 1, 1, 1}, p.grad_sync = GradSync::last;
       }},
      {"loop.unshard: no unit's first module is 'layers.7'", [](ShardingPlan& p) { p.loop.unshard = {"layers.7"}; }},
      {"loop.reshard: no unit's first module is 'layers.7'", [](ShardingPlan& p) { p.loop.reshard = {"layers.7"}; }},
      {"loop.reshard: resharding 'layers.0' by hand, which is kept over a part of the ranks",
       [](ShardingPlan& p) { p.loop.reshard = {"layers.0"}, p.units[0].reshard_after_forward = {2}; }},
      {"loop.loss_in_model: the output layer runs outside of the model",
       [](ShardingPlan& p) { p.loop.loss_in_model = p.loop.chunk_head = true, p.loss_chunks = 2; }},
      {"loop.loss_in_model: a model computes its loss in one part, the plan has 2",
       [](ShardingPlan& p) { p.loop.loss_in_model = true, p.loss_chunks = 2; }},
      {"loop.loss_in_model: several forwards before one backward",
       [](ShardingPlan& p) { p.loop.loss_in_model = true, p.loop.forwards = 2; }},
      {"loop.chunk_head: the loss is computed in one part", [](ShardingPlan& p) { p.loop.chunk_head = true; }},
      {"loop.chunk_head: a loss in parts has a backward of its own",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loop.forwards = 2, p.loss_chunks = 2; }},
      {"loop.chunk_head: 3 parts do not divide the 10 tokens",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loss_chunks = 3; }},
      {"loop.chunk_head: 'head' runs outside of the model's forward, and is no unit of its own",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loss_chunks = 2, p.units.erase(p.units.end() - 2); }},
      {"loop.chunk_head: reducing the gradients of 'head' alone, without those of the unit's 'layers.1'",
       [](ShardingPlan& p) {
         p.loop.chunk_head = true, p.loss_chunks = 2;
         p.units = {{{"layers.0"}}, {{"layers.1", "head"}}, {{""}}};
       }},
      {"loop.chunk_head: 'layers.0' is kept over a part of the ranks",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loss_chunks = 2, p.units[0].reshard_after_forward = {2}; }},
      {"loop.chunk_head: 'head' runs outside of the model's forward, and is recomputed with 'head'",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loss_chunks = 2, p.checkpointed = {"head"}; }},
      {"loop.chunk_head: 5000 parts, each with operations",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loss_chunks = 5000, p.seq_len = 5000; }},
      {"loop.last_backward: ", [](ShardingPlan& p) { p.loop.last_backward = p.offload = true; }},
      {"loop.post_optim_event: ", [](ShardingPlan& p) { p.loop.post_optim_event = p.offload = true; }},
      {"loop: what loops do by hand is known as it is in PyTorch 2.15 only",
       [](ShardingPlan& p) {
         p.loop.unshard_async = true, p.torch = {2, 14};
       }},
      {"loop.unshard: 'layers.0' is listed twice",
       [](ShardingPlan& p) {
         p.loop.unshard = {"layers.0", "layers.1", "layers.0"};
       }},
      {"loss_chunks: 5 parts of the loss in each of 4096 micro-batches",
       [](ShardingPlan& p) {
         p.loop.chunk_head = true, p.loss_chunks = 5, p.seq_len = 5;
         p.micro_batches.assign(4096, 1);
         for (int u = 0; u < 200; ++u) p.units.insert(p.units.begin(), p.units.front());
       }},
      {"units[0].modules: ",
       [](ShardingPlan& p) { p.loop.chunk_head = true, p.loss_chunks = 2, p.units[0].modules.clear(); }},
      {"loop: what loops do by hand is not known beside products in 8 bits",
       [](ShardingPlan& p) {
         p.loop.unshard_async = true, p.float8.recipe = Float8Recipe::tensorwise;
         p.param_dtype = DType::bf16;
       }},
      {"loop: what loops do by hand is not known beside tensor ranks",
       [](ShardingPlan& p) {
         p.loop.unshard_async = true, p.mesh = {{"replicate", 1}, {"shard", 2}, {"tensor", 2}};
         p.tensor_plan.modules.emplace_back(), p.seq_len = 4;
       }},
      {"loop: fsdp1 has no units", [](ShardingPlan& p) { p.loop.unshard_async = true, p.dialect = Dialect::fsdp1; }},
      {"loop: ddp has no units",
       [](ShardingPlan& p) {
         p.loop.unshard_async = true, p.dialect = Dialect::ddp, p.mesh = {{"replicate", 4}};
         for (Unit& u : p.units) u.reshard_after_forward = Reshard::automatic;
       }},
  };
  CHECK_NOTHROW(check(looped(model), model));
  for (const Rule& rule : rules) {
    CAPTURE(rule.says);
    ShardingPlan plan = looped(model);
    rule.breaks(plan);
    const std::string said = testing::refusal([&] { check(plan, model); });
    CAPTURE(said);
    CHECK(said.starts_with("plan: " + rule.says));
  }
}

TEST_CASE("what the loop does by hand is read by name, and unknown names are refused") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = looped(model);
  plan.loop.last_backward = true;
  plan.loop.forwards = 2;
  plan.loop.unshard = {"layers.1"};
  const std::string text = to_json_text(plan);
  CHECK(parse_plan(text, "plan.json") == plan);
  CHECK(text.find("unshard_async") == std::string::npos);
  std::string wrong = text;
  wrong.replace(wrong.find("last_backward"), 13, "last_backwads");
  CHECK(testing::refusal([&] { (void)parse_plan(wrong, "plan.json"); }).find("last_backwads") != std::string::npos);
  CHECK(loop_text(plan.loop) == "only the last backward waits, 2 forwards per backward, 1 units gathered by hand");
}

TEST_CASE("a loop that does nothing by hand leaves every step as it was, and any that does is free of races") {
  const ModelGraph model = toy::model({.blocks = 3});
  const Implementation& native = find_implementation("native", false, "test");
  for (const bool async : {false, true})
    for (const bool last : {false, true})
      for (const bool event : {false, true})
        for (const int parts : {1, 5}) {
          ShardingPlan plan = looped(model);
          plan.param_dtype = DType::bf16;
          plan.loss_chunks = parts;
          plan.loop = {.unshard_async = async,
                       .post_optim_event = event,
                       .last_backward = last,
                       .chunk_head = parts > 1,
                       .unshard = {"layers.1"},
                       .reshard = {"layers.2"}};
          check(plan, model);
          const Program program = lower(model, plan, native);
          CHECK(find_races(program).empty());
          (void)replay_memory(program);  // closed
        }
}
