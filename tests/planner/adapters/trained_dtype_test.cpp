// Adapters that are kept in another type than the frozen weights beside them: what a plan may say, what shards, casts,
// gradients and states it has then, and where peft casts (planner/tensor/adapter_casts.h). Bytes of whole models are
// compared with peft in tests/planner/tape/families_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>

#include "models/catalog.h"
#include "models/graph/lora.h"
#include "models/input/error.h"
#include "planner/layout.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/tensor/adapter_casts.h"
#include "planner/tensor/local_model.h"
#include "planner/wrap.h"
#include "tests/support/refusal.h"

using namespace fsdp;
using fsdp::testing::holds;

namespace {

ModelGraph adapted(const std::string& lora = "rank=4") {
  return add_lora(load_model("tiny-llama"), parse_lora(lora, "lora"), "lora");
}

ShardingPlan plan_for(const ModelGraph& model, Dialect dialect = Dialect::fsdp2, std::int64_t ranks = 4,
                      const char* policy = "block") {
  ShardingPlan plan = naive_plan(model, {.ranks = ranks, .seq_len = 16, .dialect = dialect});
  if (dialect != Dialect::ddp) plan.units = wrap(model, policy, "test");
  plan.param_dtype = plan.master_dtype = DType::bf16;
  plan.trained_dtype = plan.reduce_dtype = DType::f32;
  return plan;
}

std::string refusal_of(const ModelGraph& model, const ShardingPlan& plan) {
  return fsdp::testing::refusal([&] { check(plan, model, "plan"); });
}

const Implementation& hf() { return hf_implementation(false); }

Program lowered(const ModelGraph& model, const ShardingPlan& plan) {
  return lower(local_model(model, plan, hf()), plan, hf());
}

std::map<BufferKind, std::int64_t> bytes_of(const Program& program) {
  std::map<BufferKind, std::int64_t> sum;
  for (const Buffer& b : program.buffers)
    if (b.unit >= 0) sum[b.kind] += b.bytes;
  return sum;
}

struct Casts {
  int up = 0, down = 0, dropped = 0;
  friend bool operator==(const Casts&, const Casts&) = default;
};
Casts casts_of(const ModelGraph& model) {
  Casts found;
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::cast) continue;
    const auto change = size_of(*op.shape.dtype) - size_of(*op.shape.from);
    ++(op.shape.dropout > 0 ? found.dropped : change > 0 ? found.up : found.down);
  }
  return found;
}

}  // namespace

TEST_CASE("a type of what is trained stands beside frozen parameters, and something must cast between the two") {
  const ModelGraph model = adapted(), plain = load_model("tiny-llama");
  CHECK(refusal_of(model, plan_for(model)).empty());
  CHECK(refusal_of(model, plan_for(model, Dialect::ddp)).empty());
  ShardingPlan plan = plan_for(model);
  CHECK(parse_plan(to_json_text(plan), "plan") == plan);
  plan.trained_dtype = DType::bf16;
  CHECK(holds(refusal_of(model, plan), "trained_dtype: all parameters are kept in bf16"));
  plan.trained_dtype = DType::i64;
  CHECK(holds(refusal_of(model, plan), "trained_dtype: int64"));
  plan = plan_for(model, Dialect::ddp);
  plan.reduce_dtype = DType::bf16;
  CHECK(holds(refusal_of(model, plan), "reduce_dtype: ddp computes and reduces in the dtype its parameters"));
  plan = plan_for(plain);
  CHECK(holds(refusal_of(plain, plan), "trained_dtype: every parameter of 'tiny-llama' is trained"));
  const std::vector<std::string> trunk = {"model"};
  const ModelGraph frozen = freeze(plain, trunk, "freeze");
  CHECK(refusal_of(frozen, plan_for(frozen)).empty());
  CHECK(holds(refusal_of(frozen, plan_for(frozen, Dialect::ddp)), "trained_dtype: ddp casts nothing"));
  plan = plan_for(frozen);
  plan.ignored = {"lm_head"};
  CHECK(holds(refusal_of(frozen, plan), "trained_dtype: nothing casts what is ignored: 'lm_head.weight'"));
}

TEST_CASE("shards of frozen weights are narrow, and of a unit only what is trained is cast to gather it") {
  const ModelGraph model = adapted();
  std::int64_t frozen = 0, trained = 0;
  for (const Parameter& p : model.parameters) (p.trainable ? trained : frozen) += p.numel();
  for (const Dialect dialect : {Dialect::fsdp2, Dialect::ddp}) {
    CAPTURE(name(dialect));
    ShardingPlan plan = plan_for(model, dialect, dialect == Dialect::ddp ? 2 : 4);
    const std::int64_t ranks = dialect == Dialect::ddp ? 1 : 4, padding = 4096;
    const Program program = lowered(model, plan);
    auto bytes = bytes_of(program);
    const auto about = [&](BufferKind kind, std::int64_t expected) {
      CAPTURE(static_cast<int>(kind));
      CHECK(bytes[kind] >= expected);
      CHECK(bytes[kind] <= expected + padding);
    };
    about(BufferKind::parameter_shard, (2 * frozen + 4 * trained) / ranks);
    about(BufferKind::optimizer_state, 2 * 4 * trained / ranks);
    about(BufferKind::sharded_gradient, 4 * trained / ranks);
    for (const Buffer& b : program.buffers)
      if (b.kind == BufferKind::sharded_gradient || b.kind == BufferKind::optimizer_state) CHECK(b.dtype == DType::f32);
    if (dialect == Dialect::ddp) continue;
    std::int64_t most = 0;  // of one unit's casts: what is trained in a block, in 16 bits
    for (const Buffer& b : program.buffers)
      if (b.kind == BufferKind::cast_shard) most = std::max(most, b.bytes);
    CHECK(most > 0);
    CHECK(most <= 2 * trained / ranks);
    const UnitLayout& block = program.layouts.front();
    CHECK(block.cast_elements() > 0);
    CHECK(block.cast_elements() < block.shard_elements);
  }
}

TEST_CASE("what a second micro-batch adds to the gradients of adapters is as wide as they are") {
  const ModelGraph model = adapted();
  ShardingPlan plan = plan_for(model, Dialect::ddp, 2);
  plan.micro_batches = {1, 1};
  int added = 0;
  for (const Buffer& b : lowered(model, plan).buffers) {
    if (b.kind != BufferKind::gradient) continue;
    CHECK(b.dtype == DType::f32);
    CHECK(b.bytes == 4 * model.parameters[static_cast<std::size_t>(b.param)].numel());
    ++added;
  }
  CHECK(added > 0);
}

TEST_CASE("peft casts where an adapter's weights are not what it reads, and hooks cast back") {
  const ModelGraph model = adapted("rank=4,dropout=0.1");
  const auto adapters = static_cast<int>(std::count_if(
      model.modules.begin(), model.modules.end(), [](const Module& m) { return m.name.ends_with(".lora_A.default"); }));
  const auto casts = [&](const ShardingPlan& plan) { return casts_of(local_model(model, plan, hf())); };
  // In blocks' units all weights are gathered in bf16; under ddp adapters multiply in fp32, and sums are cast back.
  CHECK(casts(plan_for(model)) == Casts{});
  CHECK(casts(plan_for(model, Dialect::ddp)) == Casts{adapters, adapters, 0});
  // In units of their own: to the type of the shard, dropped in it, and cast by the unit's hook.
  for (const Dialect dialect : {Dialect::fsdp1, Dialect::fsdp2}) {
    ShardingPlan own = plan_for(model, dialect, 4, "block|adapters");
    CHECK(refusal_of(model, own).empty());
    CHECK(casts(own) == Casts{adapters, adapters, adapters});
    CHECK_NOTHROW((void)lowered(model, own));
    own.master_dtype = DType::f32, own.trained_dtype.reset();  // all shards in fp32: the same
    CHECK(casts(own) == Casts{adapters, adapters, adapters});
    own.master_dtype = DType::bf16;  // all in bf16: dropped before the unit's hook, and not cast
    CHECK(casts(own) == Casts{0, 0, adapters});
  }
  // FSDP1 without mixed precision for these units: they multiply in fp32.
  ShardingPlan wide = plan_for(model, Dialect::fsdp1, 4, "block|adapters");
  for (Unit& u : wide.units)
    if (of_adapters(u)) u.param_dtype = u.reduce_dtype = DType::f32;
  CHECK(refusal_of(model, wide).empty());
  CHECK(casts(wide) == Casts{adapters, adapters, adapters});
  CHECK_NOTHROW((void)lowered(model, wide));
}

TEST_CASE("who does not know peft's casts refuses adapters that multiply in another type, and only those") {
  const ModelGraph model = adapted();
  for (const Implementation* other : {&native_implementation(), &hf_implementation(true)}) {
    CAPTURE(other->name);
    const auto said = [&](const ShardingPlan& plan) {
      return fsdp::testing::refusal([&] { (void)local_model(model, plan, *other); });
    };
    CHECK(holds(said(plan_for(model, Dialect::ddp)), "adapters that compute in another type"));
    CHECK(said(plan_for(model)).empty());
    CHECK(said(plan_for(model, Dialect::fsdp2, 4, "block|adapters")).empty());
  }
  // A model without its casts is not lowered by mistake.
  CHECK_THROWS_AS((void)lower(model, plan_for(model, Dialect::ddp), hf()), InternalError);
}

TEST_CASE("a unit of adapters may have a type of its own under fsdp1, and no other unit") {
  const ModelGraph model = adapted();
  ShardingPlan plan = plan_for(model, Dialect::fsdp1, 4, "block|adapters");
  for (Unit& u : plan.units)
    if (!of_adapters(u)) u.param_dtype = DType::f32;
  CHECK(holds(refusal_of(model, plan), "dtypes of one unit are not known under fsdp1"));
}
