// From choices to a plan: defaults, and which choice decides what.
#include "planner/search/plan_choices.h"

#include <doctest/doctest.h>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/plan/naive_plan.h"
#include "planner/wrap.h"

using namespace fsdp;

namespace {

const ModelGraph& model() {
  static const ModelGraph kModel = load_model("tiny-llama");
  return kModel;
}
constexpr PlanTarget kTarget{.ranks = 8, .seq_len = 32};

std::string refusal(const PlanChoices& c) {
  try {
    (void)plan_of(c, model(), kTarget);
  } catch (const InputError& e) {
    return e.field() + ": " + e.problem();
  }
  return "";
}

}  // namespace

TEST_CASE("without choices the plan is the naive one; CPU ranks compute in fp32") {
  CHECK(plan_of({}, model(), kTarget) == naive_plan(model(), {.ranks = 8, .seq_len = 32}));
  CHECK(plan_of({}, model(), {8, 32, true}).param_dtype == DType::f32);
  PlanChoices c;
  c.param_dtype = DType::bf16;
  CHECK(plan_of(c, model(), {8, 32, true}).param_dtype == DType::bf16);
}

TEST_CASE("any two of micro-batch, accumulation and global batch decide the third") {
  PlanChoices c;
  c.micro_batch = 2;
  c.global_batch = 64;
  CHECK(plan_of(c, model(), kTarget).micro_batches == std::vector<std::int64_t>(4, 2));
  CHECK(search_of(c, model(), kTarget).grad_accum == 4);
  c.micro_batch.reset();
  c.grad_accum = 2;
  CHECK(plan_of(c, model(), kTarget).micro_batches == std::vector<std::int64_t>(2, 4));
  c.grad_accum.reset();
  CHECK(plan_of(c, model(), kTarget).micro_batches == std::vector<std::int64_t>(8, 1));
  CHECK_FALSE(search_of(c, model(), kTarget).grad_accum.has_value());
  c.global_batch = 8 * 2000;  // as a search takes it, and a plan may have it
  CHECK(plan_of(c, model(), kTarget).micro_batches == std::vector<std::int64_t>(2000, 1));
  c.global_batch = 8 * 4097;
  CHECK(refusal(c) == "global_batch: needs 4097 micro-batches per step, more than 4096");
  c.global_batch = 60;
  CHECK(refusal(c) == "global_batch: 60 sequences do not divide over 8 GPUs");
  c.global_batch = 64;
  c.micro_batch = 3;
  CHECK(refusal(c) == "micro_batch: 3 does not divide the 8 sequences of each GPU");
  c.micro_batch = 2;
  c.grad_accum = 2;
  CHECK(refusal(c) == "global_batch: 64 sequences per step are not 2 per micro-batch x 2 micro-batches x 8 GPUs");
}

TEST_CASE("fp64 parameters bring reductions and master copies with them, unless the reduction is chosen") {
  PlanChoices c;
  c.param_dtype = DType::f64;
  CHECK(plan_of(c, model(), kTarget).reduce_dtype == DType::f64);
  CHECK(plan_of(c, model(), kTarget).master_dtype == DType::f64);
  c.reduce_dtype = DType::f32;
  CHECK(plan_of(c, model(), kTarget).reduce_dtype == DType::f32);
}

TEST_CASE("a chosen reshard holds for the units of a chosen wrap policy") {
  PlanChoices c;
  c.wrap = "block:2";
  c.reshard = Reshard::no;
  const ShardingPlan plan = plan_of(c, model(), kTarget);
  CHECK(plan.wrap == "block:2");
  CHECK(plan.units.size() == wrap(model(), "block:2", "test").size());
  for (const Unit& unit : plan.units) CHECK(unit.reshard_after_forward == Reshard::no);
}

TEST_CASE("use_orig_params came with PyTorch 2.0: false before unless it is chosen") {
  PlanChoices c;
  c.dialect = Dialect::fsdp1;
  CHECK(plan_of(c, model(), kTarget).use_orig_params);
  c.torch = {1, 13};
  CHECK_FALSE(plan_of(c, model(), kTarget).use_orig_params);
  c.use_orig_params = true;
  CHECK(refusal(c) == "use_orig_params: that came with PyTorch 2.0, the plan is for 1.13");
}

TEST_CASE("ddp replicates on every GPU, and says so to other choices") {
  PlanChoices c;
  c.dialect = Dialect::ddp;
  CHECK(plan_of(c, model(), kTarget).replicate() == 8);
  CHECK(search_of(c, model(), kTarget).replicate == 8);
  c.replicate = 2;
  CHECK(refusal(c) == "replicate: the ddp dialect replicates on every GPU");
  c.dialect = Dialect::fsdp2;
  CHECK(plan_of(c, model(), kTarget).shard() == 4);
  c.replicate = 3;
  CHECK(refusal(c) == "replicate: 3 does not divide 8 GPUs");
}

TEST_CASE("inputs of recomputed blocks in host memory: as many as the size holds, at least one, not in searches") {
  PlanChoices c;
  c.offload_activations = Bytes(INT64_MAX);
  CHECK(refusal(c) == "offload_activations: the plan recomputes nothing, and so keeps no inputs for that");
  c.checkpointing = "full";
  const ShardingPlan all = plan_of(c, model(), kTarget);
  CHECK(all.offload_activations == all.checkpointed);
  const std::int64_t one = input_bytes(all, model(), all.checkpointed[0]);
  c.offload_activations = Bytes(2 * one - 1);
  CHECK(plan_of(c, model(), kTarget).offload_activations == std::vector{all.checkpointed[0]});
  c.offload_activations = Bytes(one - 1);
  CHECK(refusal(c).find("hold no module's input: the first one's takes") != std::string::npos);
  CHECK_THROWS_WITH_AS((void)search_of(c, model(), kTarget),
                       doctest::Contains("the search keeps activations on the device"), InputError);
}
