// Plans of models with weights in 4 bits: what they may say, what they hold and gather, and what their search knows.
#include "models/graph/four_bits.h"

#include <doctest/doctest.h>

#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "planner/layout.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/search/memory_floor.h"
#include "planner/wrap.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using fsdp::testing::holds;

namespace {

ModelGraph packed(const char* base = "nf4", const char* model = "tiny-llama") {
  return add_lora(load_model(model), parse_lora(std::string("rank=4,base=") + base, "lora"), "lora");
}

ShardingPlan plan_for(const ModelGraph& model, std::int64_t ranks = 4) {
  ShardingPlan plan = naive_plan(model, {.ranks = ranks, .seq_len = 16});
  plan.param_dtype = plan.master_dtype = DType::bf16;
  return plan;
}

std::string refusal_of(const ModelGraph& model, const ShardingPlan& plan) {
  return fsdp::testing::refusal([&] { check(plan, model, "plan"); });
}

// Bytes that are there before the first step; of scales alone, which are of no unit.
struct AtFirst {
  std::int64_t all = 0, scales = 0;
};
AtFirst at_first(const Program& program) {
  AtFirst sum;
  for (const Operation& op : program.init.ops)
    for (const std::int32_t b : program.init.allocs_of(op)) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (buffer.kind != BufferKind::parameter_shard) continue;
      sum.all += buffer.bytes;
      if (buffer.unit < 0) sum.scales += buffer.bytes;
    }
  return sum;
}

}  // namespace

TEST_CASE("weights in 4 bits take an eighth of fp32, and their scales stand whole on every rank") {
  const ModelGraph plain = load_model("tiny-llama"), four = packed(), less = packed("nf4-double");
  const Implementation& hf = find_implementation("hf", false, "test");
  std::int64_t numbers = 0, others = 0, scales = 0, smaller = 0;
  for (const Parameter& p : four.parameters) {
    (is_packed(p) ? numbers : others) += p.numbers();
    scales += p.scale_bytes;
  }
  for (const Parameter& p : less.parameters) smaller += p.scale_bytes;
  CHECK(numbers + others == four.parameter_count());
  CHECK(four.parameter_count() == add_lora(plain, {.rank = 4}, "lora").parameter_count());
  CHECK(smaller < scales);
  for (const std::int64_t ranks : {1, 4}) {
    const AtFirst found = at_first(lower(four, plan_for(four, ranks), hf));
    CHECK(found.scales == scales);
    CHECK(found.all - scales >= (numbers / 2 + others * 2) / ranks);
    CHECK(found.all - scales <= (numbers / 2 + others * 2) / ranks + 2 * 256);  // padding
  }
  // What a search takes for the least has them, too, and no more than there is.
  const auto states = [&](const ModelGraph& model) { return memory_floor(model, plan_for(model), hf).states; };
  CHECK(states(four) - states(less) == scales - smaller);
  CHECK(states(four) >= at_first(lower(four, plan_for(four), hf)).all);
}

TEST_CASE("a plan may not cast what is packed") {
  const ModelGraph model = packed();
  CHECK(refusal_of(model, plan_for(model)).empty());
  ShardingPlan plan = plan_for(model);
  plan.master_dtype = DType::f32;
  CHECK(holds(refusal_of(model, plan), "master_dtype: weights in 4 bits stand in elements of 16 bits"));
  plan = plan_for(model);
  plan.param_dtype = DType::f32;
  CHECK(holds(refusal_of(model, plan), "param_dtype: casting weights in 4 bits"));
  plan = plan_for(model);
  plan.units[0].param_dtype = DType::f32;
  CHECK(holds(refusal_of(model, plan), "param_dtype: casting weights in 4 bits"));
  plan = plan_for(model);
  plan.float8.recipe = Float8Recipe::rowwise;
  CHECK(holds(refusal_of(model, plan), "float8"));
  plan = naive_plan(model, {.ranks = 4, .tensor = 1, .seq_len = 16, .dialect = Dialect::ddp});
  CHECK(holds(refusal_of(model, plan), "master_dtype"));
  plan.param_dtype = plan.reduce_dtype = plan.master_dtype = DType::bf16;
  CHECK(refusal_of(model, plan).empty());
}

// A block ends in down_proj, which has no adapter. In 16 bits autograd saves its weight, and the block runs again
// before its backward; in 4 bits bitsandbytes' function holds the weight by itself, and the block runs again after it
// (recorded: "units of frozen layers in 4 bits, recomputed" in tests/torch/random/kept_plans.json).
TEST_CASE("a packed weight is nothing that a block is run again for") {
  const auto runs_again_first = [](const std::string& base) {
    const ModelGraph model =
        add_lora(load_model("tiny-llama"), parse_lora("rank=4,targets=q_proj" + base, "lora"), "lora");
    ShardingPlan plan = plan_for(model);
    set_checkpointing(plan, model, "full", "test");
    for (const Operation& op : lower(model, plan, find_implementation("hf", false, "test")).steady_step.ops) {
      if (op.action == Action::recompute) return true;
      if (op.action != Action::backward) continue;
      const Op& of = model.ops[static_cast<std::size_t>(op.graph_op)];
      if (of.module < 0) continue;
      if (model.modules[static_cast<std::size_t>(of.module)].name.ends_with(".mlp.down_proj")) return false;
    }
    return true;
  };
  CHECK(runs_again_first(""));
  CHECK_FALSE(runs_again_first(",base=nf4"));
}

TEST_CASE("who cannot multiply them says so, and models that bitsandbytes leaves alone are refused") {
  const ModelGraph model = packed();
  for (const char* name : {"native", "torchtitan", "automodel"}) {
    CAPTURE(name);
    const std::string said =
        fsdp::testing::refusal([&] { (void)lower(model, plan_for(model), find_implementation(name, false, "test")); });
    CHECK(holds(said, "weights in 4 bits"));
  }
  CHECK(holds(fsdp::testing::refusal(
                  [&] { (void)lower(model, plan_for(model), find_implementation("hf", /*compiled=*/true, "test")); }),
              "weights in 4 bits"));
  CHECK(holds(fsdp::testing::refusal([] {
                (void)add_lora(load_model("tiny-mixtral"), parse_lora("rank=2,targets=q_proj,base=nf4", "lora"),
                               "lora");
              }),
              "lora: weights in 4 bits of a model with experts are not modelled"));
  CHECK(holds(fsdp::testing::refusal([] { (void)in_four_bits(load_model("tiny-llama"), FourBits::nf4, "base"); }),
              "is trained"));
}

TEST_CASE("peft's units: each trained matrix beside the blocks, which fsdp1 needs") {
  const ModelGraph model = packed();
  ShardingPlan plan = plan_for(model);
  plan.dialect = Dialect::fsdp1;
  CHECK(holds(refusal_of(model, plan), "--wrap 'block|adapters'"));
  plan.units = wrap(model, plan.wrap = "block|adapters", "wrap");
  CHECK(refusal_of(model, plan).empty());
  std::size_t trained = 0, blocks = 0;
  for (const Parameter& p : model.parameters) trained += p.trainable ? 1 : 0;
  for (const Module& m : model.modules) blocks += m.block ? 1 : 0;
  CHECK(plan.units.size() == trained + blocks + 1);
  for (const UnitLayout& unit : unit_layouts(plan, model))
    for (const ShardedParam& p : unit.params) CHECK(p.trainable == unit.params.front().trainable);
  CHECK(wrap(model, "adapters", "wrap").size() == trained + 1);
  CHECK(holds(fsdp::testing::refusal([] { (void)wrap(load_model("tiny-llama"), "block|adapters", "wrap"); }),
              "has no adapters beside frozen weights"));
}
