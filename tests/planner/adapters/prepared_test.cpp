// Plans of models in 4 bits as trl prepares them for autocast: what they may say, and what a rank computes in which
// type. Their memory against PyTorch: tests/planner/tape/prepared_test.cpp.
#include "planner/tensor/prepared_casts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "planner/emit.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/local_model.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using fsdp::testing::holds;
using fsdp::testing::refusal;

namespace {

const Implementation& hf() { return hf_implementation(false); }

ModelGraph prepared(const char* model = "tiny-llama", const std::string& more = "") {
  return add_lora(load_model(model), parse_lora("rank=4,base=nf4" + more + ",prepared", "lora"), "lora");
}

ShardingPlan plan_for(const ModelGraph& model) {
  ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 16, .dialect = Dialect::ddp});
  plan.param_dtype = plan.master_dtype = DType::bf16;
  plan.trained_dtype = plan.reduce_dtype = DType::f32;
  return plan;
}

std::string refusal_of(const ModelGraph& model, const ShardingPlan& plan) {
  return refusal([&] { check(plan, model, "plan"); });
}

}  // namespace

TEST_CASE("a prepared model is replicated, computes in bf16 under autocast, and has adapters in fp32") {
  const ModelGraph model = prepared();
  CHECK(refusal_of(model, plan_for(model)).empty());
  ShardingPlan plan = plan_for(model);
  plan.trained_dtype.reset(), plan.reduce_dtype = DType::bf16;
  CHECK(holds(refusal_of(model, plan), "trained_dtype: peft makes the adapters of a prepared model in fp32"));
  ShardingPlan kept = plan_for(model);
  kept.checkpoint_policy = CheckpointPolicy::selective_op;
  CHECK(holds(refusal_of(model, kept), "checkpoint_policy: checkpoints of a prepared model are reentrant"));
  plan = naive_plan(model, {.ranks = 2, .seq_len = 16});
  plan.param_dtype = plan.master_dtype = DType::bf16, plan.trained_dtype = DType::f32;
  CHECK(holds(refusal_of(model, plan), "dialect: trl prepares no model in 4 bits that is sharded"));
  plan = plan_for(model);
  plan.param_dtype = plan.master_dtype = DType::f16;
  CHECK(holds(refusal_of(model, plan), "param_dtype"));
  CHECK(holds(refusal([&] { (void)emit("pytorch", plan_for(model), model, {}); }), "emit: no emitted script"));
}

TEST_CASE("only weights in 4 bits are prepared, and a digest says that they are") {
  CHECK(holds(refusal([] { (void)parse_lora("rank=4,prepared", "lora"); }), "only models with weights in 4 bits"));
  CHECK(parse_lora("4,base=nf4,prepared", "lora").prepared);
  ModelGraph model = prepared();
  const std::string digest = model.digest();
  model.prepared = false;
  CHECK(model.digest() != digest);
}

TEST_CASE("fp32 flows from norms through feed-forwards into sums; products and attention are in bf16") {
  const ModelGraph model = prepared("tiny-llama", ",targets=q_proj,dropout=0.1"),
                   local = local_model(model, plan_for(model), hf());
  const auto wide = [&](std::int32_t t) { return local.tensors[static_cast<std::size_t>(t)].dtype == DType::f32; };
  std::int64_t sums = 0, unpacked = 0, called_with_bf16 = 0, dropped = 0;
  for (const Op& op : local.ops) {
    CAPTURE(name(op.kind));
    const bool reads_wide = std::any_of(op.inputs.begin(), op.inputs.end(), wide), makes_wide = wide(op.outputs[0]);
    if (op.kind == OpKind::rms_norm || op.kind == OpKind::swiglu) CHECK((reads_wide && makes_wide));
    if (op.kind == OpKind::linear || op.kind == OpKind::attention) CHECK((!reads_wide && !makes_wide));
    if (op.kind == OpKind::add) sums += makes_wide ? 1 : 0;
    if (op.kind == OpKind::linear && op.shape.four_bits != FourBits::none)
      ++(op.shape.unpacked_wide ? unpacked : called_with_bf16);
    if (op.kind == OpKind::cast && op.shape.dropout > 0) ++dropped;
  }
  const auto blocks = static_cast<std::int64_t>(
      std::count_if(local.modules.begin(), local.modules.end(), [](const Module& m) { return m.block; }));
  CHECK(called_with_bf16 == blocks);  // o_proj
  CHECK(unpacked == 6 * blocks);      // q, k, v, gate, up, down
  CHECK(dropped == blocks);           // of q's adapter
  CHECK(sums == 3 * blocks - 1);      // q's adapter, both residuals, but the first, of embedding and attention
}

TEST_CASE("what is not known under autocast says so") {
  const ModelGraph model = prepared();
  for (const Implementation* other : {&hf_implementation(true), &hf_eager_attention_implementation()})
    CHECK(holds(refusal([&] { (void)local_model(model, plan_for(model), *other); }), "under autocast"));
  const ModelGraph gpt2 = prepared("gpt2");
  CHECK(holds(refusal([&] { (void)local_model(gpt2, plan_for(gpt2), hf()); }), "under autocast is not known here"));
}
