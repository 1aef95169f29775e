// Reentrant checkpoints around fsdp1's units (docs/fsdp-order.md A2.15): their policy, their rules, and what a frozen
// unit holds, derived in comments. What PyTorch issues and holds: planner_torch_fsdp1_test,
// planner_torch_fsdp1_memory_test.
#include <doctest/doctest.h>

#include <algorithm>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/implementation.h"
#include "planner/emit.h"
#include "planner/job.h"
#include "planner/lower.h"
#include "planner/search/plan_choices.h"
#include "planner/wrap.h"
#include "simulator/engine/race.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using fsdp::testing::holds;

namespace {

ModelGraph adapted() { return add_lora(load_model("tiny-llama"), parse_lora("rank=2,targets=q_proj", "lora"), "lora"); }

ShardingPlan plan(const ModelGraph& model, const char* checkpointing, std::string wrap = "block|adapters") {
  PlanChoices c;
  c.dialect = Dialect::fsdp1;
  c.wrap = std::move(wrap);
  c.checkpointing = checkpointing;
  return plan_of(c, model, {.ranks = 4, .seq_len = 16});
}

Program lowered(const ModelGraph& model, const ShardingPlan& p) {
  const Job job = resolve(model, p, find_implementation("hf", false, "test"), {});
  return lower(job.model, job.plan, job.ids, job.implementation, 0);
}

// The most that is there at once of activations' gradients in the backward of ops below `end`.
std::int64_t most_gradients(const Program& program, std::int32_t end) {
  std::int64_t now = 0, most = 0;
  const auto bytes = [&](std::int32_t b) {
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
    return buffer.kind == BufferKind::activation_gradient ? buffer.bytes : 0;
  };
  for (const Operation& op : program.steady_step.ops)
    memory_events(
        program.steady_step, op,
        [&](std::int32_t b) {
          now += bytes(b);
          if (op.action == Action::backward && op.graph_op < end) most = std::max(most, now);
        },
        [&](std::int32_t b) { now -= bytes(b); });
  return most;
}

}  // namespace

TEST_CASE("the policy 'reentrant' recomputes whole blocks, or some of them, and is read back from a plan") {
  const ModelGraph model = adapted();
  for (const char* policy : {"reentrant", "reentrant:first-2", "reentrant:every-2"}) {
    CAPTURE(std::string(policy));
    const ShardingPlan p = plan(model, policy);
    CHECK(p.reentrant);
    CHECK(checkpointing_policy(p, model) == policy);
    CHECK(parse_plan(to_json_text(p), "plan.json") == p);
  }
  CHECK_FALSE(plan(model, "full").reentrant);
  CHECK(holds(testing::refusal([&] { (void)plan(model, "reentrant:full"); }), "unknown activation checkpointing"));
}

TEST_CASE("rules of plans with reentrant checkpoints") {
  const ModelGraph model = adapted();
  struct Rule {
    const char* says;
    void (*breaks)(ShardingPlan&);
  };
  const Rule rules[] = {
      {"reentrant: there is no checkpoint that could be reentrant", [](ShardingPlan& p) { p.checkpointed.clear(); }},
      {"checkpoint_policy: keeping some of the results beside reentrant checkpoints",
       [](ShardingPlan& p) { p.checkpoint_policy = CheckpointPolicy::selective_op; }},
      {"offload_activations: offload of activations beside reentrant checkpoints",
       [](ShardingPlan& p) { p.offload_activations = p.checkpointed; }},
      {"reentrant: reentrant checkpoints are known of fsdp1 alone",
       [](ShardingPlan& p) { p.dialect = Dialect::fsdp2; }},
      {"checkpointed: 'model.embed_tokens' is called with ids alone",
       [](ShardingPlan& p) { p.checkpointed = {"model.embed_tokens"}; }},
      // PyTorch frees the root when the blocks' own backward has ended, and fails ("size mismatch, ... vec (0)").
      {"units[0].modules: the unit holds 'model.layers.0.", [](ShardingPlan& p) { p.units = {Unit{{""}}}; }},
  };
  const ModelGraph whole = load_model("tiny-llama");
  CHECK_NOTHROW(check(plan(model, "reentrant"), model));
  for (const Rule& rule : rules) {
    CAPTURE(rule.says);
    ShardingPlan p = plan(whole, "reentrant", "block");
    rule.breaks(p);
    const std::string said = testing::refusal([&] { check(p, whole); });
    CAPTURE(said);
    CHECK(said.starts_with(std::string("plan: ") + rule.says));
  }
  CHECK(holds(testing::refusal([&] {
                (void)lower(whole, plan(whole, "reentrant", "block"), find_implementation("hf", true, "test"));
              }),
              "what torch.compile makes of reentrant checkpoints is not known here"));
  const Emitted emitted = emit("accelerate", plan(whole, "reentrant", "block"), whole);
  CHECK(std::any_of(emitted.cannot_express.begin(), emitted.cannot_express.end(),
                    [](const Inexact& i) { return i.field == "reentrant"; }));
}

// A block of tiny-llama is frozen but for its adapters, which are units of their own: each block's hook holds what the
// block was called with and the gradient of that until backward ends. So while the first block's backward runs there
// are, of [sequences, tokens, hidden] in the plan's type, the gradients of all blocks' inputs but the first's; an
// ordinary checkpoint has the last of these alone. Where the blocks are trained, no hook lies on their inputs.
TEST_CASE("gradients of frozen units' inputs add up over the blocks, and those of trained ones do not") {
  const ModelGraph model = adapted(), whole = load_model("tiny-llama");
  const auto blocks = static_cast<std::int64_t>(plan(model, "reentrant").checkpointed.size());
  REQUIRE(blocks >= 3);
  const ShardingPlan again = plan(model, "reentrant");
  const std::int64_t hidden = model.parameters.front().shape.back();
  const std::int64_t activation = again.micro_batches.front() * 16 * hidden * size_of(again.param_dtype);
  const auto most = [&](const ModelGraph& m, const char* policy, const char* wrap) {
    const std::int32_t first = m.find_module(again.checkpointed.front());
    return most_gradients(lowered(m, plan(m, policy, wrap)), m.modules[static_cast<std::size_t>(first)].op_end);
  };
  const std::int64_t more = most(model, "reentrant", "block|adapters") - most(model, "full", "block|adapters");
  CHECK(more >= (blocks - 2) * activation);
  CHECK(more <= blocks * activation);
  const std::int64_t trained = most(whole, "reentrant", "block") - most(whole, "full", "block");
  CHECK(trained <= 2 * activation);
}

TEST_CASE("a block is gathered three times a micro-batch, and no two operations race") {
  const ModelGraph whole = load_model("tiny-llama");
  for (const char* policy : {"full", "reentrant"}) {
    CAPTURE(std::string(policy));
    const Program program = lowered(whole, plan(whole, policy, "block"));
    std::int64_t gathers = 0;
    for (const Operation& op : program.steady_step.ops) gathers += op.action == Action::all_gather && op.unit == 0;
    CHECK(gathers == (policy == std::string("full") ? 2 : 3));
    CHECK(find_races(program).empty());
  }
}

// The residual stream's gradient is what the backward of such a part begins with, and is added to behind it.
TEST_CASE("parts of blocks have reentrant checkpoints, too: what they hold is there for who reads it later") {
  const ModelGraph whole = load_model("tiny-llama"),
                   prepared =
                       add_lora(load_model("tiny-llama"), parse_lora("rank=2,base=nf4,prepared", "lora"), "lora");
  for (const char* part : {"self_attn", "mlp", "mlp.down_proj"}) {
    CAPTURE(std::string(part));
    ShardingPlan p = plan(whole, "reentrant", "block");
    std::vector<Unit> units;
    for (std::string& block : p.checkpointed) {
      units.push_back({{block + "." + part}});
      units.push_back({{block}});
      block += std::string(".") + part;
    }
    units.push_back({{""}});
    p.units = units;
    check(p, whole);
    CHECK(find_races(lowered(whole, p)).empty());
    PlanChoices c;
    c.dialect = Dialect::ddp;
    ShardingPlan replicated = plan_of(c, prepared, {.ranks = 2, .seq_len = 16});
    replicated.checkpointed = p.checkpointed;
    check(replicated, prepared);
    CHECK(find_races(lowered(prepared, replicated)).empty());
  }
}
