// A unit of all that is trained around the others (docs/fsdp-order.md A2.14): its policy, its rules, and what a step
// holds, derived in comments. What PyTorch issues for it: planner_torch_fsdp1_test, planner_torch_fsdp1_memory_test.
#include <doctest/doctest.h>

#include <algorithm>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/emit.h"
#include "planner/layout.h"
#include "planner/lower.h"
#include "planner/search/plan_choices.h"
#include "planner/wrap.h"
#include "simulator/engine/race.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using fsdp::testing::holds;

namespace {

ModelGraph adapted() { return add_lora(load_model("tiny-llama"), parse_lora("rank=2,targets=q_proj", "lora"), "lora"); }

PlanChoices choices() {
  PlanChoices c;
  c.dialect = Dialect::fsdp1;
  c.wrap = std::string(kTrainedOutermostUnits);
  return c;
}

ShardingPlan plan(const ModelGraph& model, std::int64_t ranks = 4) {
  return plan_of(choices(), model, {.ranks = ranks, .seq_len = 16});
}

}  // namespace

TEST_CASE("block|trained-outermost: a unit per block, one of the frozen rest, and the root of all that is trained") {
  const ModelGraph model = adapted();
  const ShardingPlan p = plan(model);
  CHECK(p.trained_outermost);
  const std::vector<Unit> blocks = wrap(model, "block", "wrap");
  REQUIRE(p.units.size() == blocks.size() + 1);
  CHECK(p.units_of_modules() == blocks.size());
  CHECK(p.units.back().modules == std::vector<std::string>{""});
  CHECK(p.units[blocks.size() - 1].modules == std::vector<std::string>{""});
  CHECK(parse_plan(to_json_text(p), "plan.json") == p);
  const std::vector<UnitLayout> layouts = unit_layouts(p, model);
  const std::vector<std::int32_t> unit_of = unit_of_parameters(layouts, model);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    CAPTURE(model.parameters[i].name);
    CHECK((unit_of[i] + 1 == static_cast<std::int32_t>(layouts.size())) == model.parameters[i].trainable);
  }
  CHECK(layouts.back().root);
  CHECK_FALSE(layouts[layouts.size() - 2].root);
  CHECK(holds(testing::refusal([] { (void)wrap(load_model("tiny-llama"), kTrainedOutermostUnits, "wrap"); }),
              "has no adapters beside frozen weights"));
}

TEST_CASE("rules of a plan whose trained parameters are all in the root") {
  const ModelGraph model = adapted();
  struct Rule {
    const char* says;
    void (*breaks)(ShardingPlan&);
  };
  const Rule rules[] = {
      {"trained_outermost: the last two units must both be the whole model",
       [](ShardingPlan& p) { p.units.pop_back(); }},
      {"trained_outermost: the last two units must both be the whole model", [](ShardingPlan& p) { p.units.clear(); }},
      {"units[4].modules: the root \"\" must be a unit by itself and the last one",
       [](ShardingPlan& p) { p.trained_outermost = false; }},
      {"ignored: ignored parameters beside a unit around all others",
       [](ShardingPlan& p) { p.ignored = {"model.norm"}; }},
      {"trained_outermost: fsdp2 shards no parameter outside of its modules' units",
       [](ShardingPlan& p) { p.dialect = Dialect::fsdp2; }},
      {"units[1].modules: 'model.layers.0' is listed twice",
       [](ShardingPlan& p) { p.units.insert(p.units.begin(), p.units.front()); }},
  };
  CHECK_NOTHROW(check(plan(model), model));
  for (const Rule& rule : rules) {
    CAPTURE(rule.says);
    ShardingPlan p = plan(model);
    rule.breaks(p);
    const std::string said = testing::refusal([&] { check(p, model); });
    CAPTURE(said);
    CHECK(said.starts_with(std::string("plan: ") + rule.says));
  }
  const ModelGraph whole = load_model("tiny-llama");
  ShardingPlan p = plan(model);
  p.model_digest = whole.digest();
  CHECK(holds(testing::refusal([&] { check(p, whole); }), "every parameter of 'tiny-llama' is trained"));
  CHECK(holds(testing::refusal([&] { (void)emit("accelerate", plan(model), model); }),
              "puts a unit of trained parameters around all others"));
}

// The loss is the last op. transformers' model computes it, so that the frozen rest (unit 4) is whole meanwhile.
TEST_CASE("the inner unit of the whole model is freed behind the loss where the model computes that") {
  const ModelGraph model = adapted();
  const ShardingPlan p = plan(model);
  const auto loss = static_cast<std::int32_t>(model.ops.size()) - 1;
  for (const char* name : {"hf", "native"}) {
    CAPTURE(std::string(name));
    const Program program = lower(model, p, find_implementation(name, false, "test"));
    bool whole = false;
    int at_loss = 0;
    for (const Operation& op : program.steady_step.ops) {
      const auto held = [&](std::span<const std::int32_t> buffers, bool comes) {
        for (const std::int32_t b : buffers) {
          const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
          if (buffer.kind == BufferKind::unsharded_parameter && buffer.unit == 4) whole = comes;
        }
      };
      held(program.steady_step.allocs_of(op), true);
      if (op.graph_op == loss && (op.action == Action::forward || op.action == Action::backward)) at_loss += whole;
      held(program.steady_step.frees_of(op), false);
    }
    CHECK(at_loss == (name == std::string("hf") ? 2 : 0));
  }
}

// tiny-llama has four blocks. In forward each unit is gathered once; in backward the frozen five again, and the root,
// which was kept, not. One reduction: the root's. Its gradients, 2 * (hidden + hidden) numbers of each block, are all
// whole when the flat one is made of them.
TEST_CASE("one reduction at the end of backward, of gradients that are whole until then") {
  const ModelGraph model = adapted();
  for (const bool checkpointed : {false, true}) {
    PlanChoices c = choices();
    if (checkpointed) c.checkpointing = "full";
    const ShardingPlan p = plan_of(c, model, {.ranks = 4, .seq_len = 16});
    const Program program = lower(model, p, find_implementation("native", false, "test"));
    CHECK(find_races(program).empty());
    std::vector<std::int32_t> gathers, reductions;
    std::int64_t pieces = 0, most_pieces = 0;
    for (const Operation& op : program.steady_step.ops) {
      if (op.action == Action::all_gather) gathers.push_back(op.unit);
      if (op.action == Action::reduce_scatter) reductions.push_back(op.unit);
      const auto count = [&](std::span<const std::int32_t> buffers, int sign) {
        for (const std::int32_t b : buffers) {
          const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
          if (buffer.kind == BufferKind::gradient && buffer.param >= 0) pieces += sign * buffer.bytes;
        }
      };
      count(program.steady_step.allocs_of(op), 1);
      most_pieces = std::max(most_pieces, pieces);
      count(program.steady_step.frees_of(op), -1);
    }
    CHECK(gathers == std::vector<std::int32_t>{5, 4, 0, 1, 2, 3, 4, 3, 2, 1, 0});
    CHECK(reductions == std::vector<std::int32_t>{5});
    std::int64_t trained = 0;
    for (const Parameter& parameter : model.parameters) trained += parameter.trainable ? parameter.numel() : 0;
    CHECK(most_pieces == trained * size_of(p.param_dtype));
  }
}
