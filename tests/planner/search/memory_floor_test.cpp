// The floor that a search prunes by is never above what a plan holds: where the output layer runs in parts, and where
// weights are in 4 bits.
#include "planner/search/memory_floor.h"

#include <doctest/doctest.h>

#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/local_model.h"
#include "planner/wrap.h"
#include "simulator/engine/memory.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

std::int64_t held(const ModelGraph& model, const ShardingPlan& plan, const Implementation& impl) {
  return replay_memory(lower(model, plan, impl)).peak;
}

}  // namespace

TEST_CASE("an output layer that runs with each part of the loss: no whole logits are counted") {
  const ModelGraph model = small_llama({.vocab = 8192});  // logits decide
  const Implementation& titan = find_implementation("torchtitan", false, "test");
  for (const std::int64_t micro_batches : {1, 2}) {
    CAPTURE(micro_batches);
    ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 64});
    plan.units = wrap(model, plan.wrap = "titan", "test");
    plan.micro_batches.assign(static_cast<std::size_t>(micro_batches), 8);
    set_checkpointing(plan, model, "full", "test");
    plan.loss_chunks = 8;
    const std::int64_t whole = memory_floor(model, plan, titan).bytes();
    REQUIRE(run_head_in_chunks(plan, model));
    const std::int64_t floor = memory_floor(model, plan, titan).bytes(), peak = held(model, plan, titan);
    CHECK(floor <= peak);
    CHECK(peak < whole);  // so that counting whole logits would rule the plan out
  }
}

TEST_CASE("weights in 4 bits: scales are counted, and nothing that is not there") {
  const Implementation& hf = find_implementation("hf", false, "test");
  for (const char* base : {"nf4", "nf4-double"})
    for (const char* recomputed : {"none", "full"}) {
      CAPTURE(base);
      CAPTURE(recomputed);
      const ModelGraph model =
          add_lora(load_model("tiny-llama"), parse_lora(std::string("rank=4,dropout=0.1,base=") + base, "t"), "t");
      ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 64});
      plan.param_dtype = plan.master_dtype = DType::bf16;
      set_checkpointing(plan, model, recomputed, "test");
      CHECK(memory_floor(model, plan, hf).bytes() <= held(model, plan, hf));
    }
}

TEST_CASE("weights in 4 bits, prepared for autocast: nothing that is not there") {
  const Implementation& hf = find_implementation("hf", false, "test");
  for (const char* recomputed : {"none", "full"}) {
    CAPTURE(recomputed);
    const ModelGraph model =
        add_lora(load_model("tiny-llama"), parse_lora("rank=4,dropout=0.1,base=nf4,prepared", "t"), "t");
    ShardingPlan plan = naive_plan(model, {.ranks = 4, .seq_len = 64, .dialect = Dialect::ddp});
    plan.param_dtype = plan.master_dtype = DType::bf16;
    plan.trained_dtype = plan.reduce_dtype = DType::f32;
    set_checkpointing(plan, model, recomputed, "test");
    const ModelGraph local = local_model(model, plan, hf);
    CHECK(memory_floor(model, plan, hf).bytes() <= held(local, plan, hf));
  }
}
