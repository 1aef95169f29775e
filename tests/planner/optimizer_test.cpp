// The rules of a plan's optimizer.
#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "models/input/error.h"
#include "planner/plan.h"
#include "planner/plan/naive_plan.h"
#include "tests/support/small_models.h"

namespace fsdp {
namespace {

ShardingPlan on_four(const ModelGraph& model) { return naive_plan(model, {.ranks = 4, .seq_len = 8}); }

std::string refusal_of(const ShardingPlan& plan, const ModelGraph& model) {
  try {
    check(plan, model, "plan.json");
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

void check_refused(const ShardingPlan& plan, const ModelGraph& model, const std::string& expected) {
  const std::string refusal = refusal_of(plan, model);
  CHECK_MESSAGE(refusal.find(expected) != std::string::npos, refusal);
}

}  // namespace

TEST_CASE("optimizers: momentum is sgd's and below 1; 8-bit AdamW where torchao's states are known") {
  const ModelGraph model = small_llama();
  const auto broken = [&](auto change, const char* expected) {
    ShardingPlan plan = on_four(model);
    change(plan);
    check_refused(plan, model, expected);
  };
  ShardingPlan plan = on_four(model);
  plan.optimizer.kind = OptimizerKind::sgd, plan.optimizer.momentum = 0.9;
  CHECK_NOTHROW(check(plan, model));
  plan.optimizer = {OptimizerKind::adamw_8bit};
  CHECK_NOTHROW(check(plan, model));
  for (const double out_of_range : {1.0, -0.1, std::numeric_limits<double>::quiet_NaN()})
    broken([&](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::sgd, p.optimizer.momentum = out_of_range; },
           "optimizer.momentum");
  for (const OptimizerKind other : {OptimizerKind::adamw, OptimizerKind::adamw_8bit})
    broken([&](ShardingPlan& p) { p.optimizer.kind = other, p.optimizer.momentum = 0.9; },
           "optimizer.momentum: 0.9 is given, which adamw");
  broken([](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::adamw_8bit, p.offload = true; }, "offload");
  broken(
      [](ShardingPlan& p) {
        p.optimizer.kind = OptimizerKind::adamw_8bit;
        p.dialect = Dialect::ddp, p.mesh = {{"replicate", 4}};
        p.param_dtype = p.reduce_dtype = p.master_dtype;
      },
      "optimizer.kind: what adamw-8bit (torchao.optim.AdamW8bit) keeps is known for fsdp2's shards, not under ddp");
}

TEST_CASE("8-bit AdamW is refused where a short shard is unquantized and larger than rank 0's") {
  // 513 rows of 32 on 2 ranks: 257 rows are 8,224 elements, no multiple of 256, and stay fp32; 256 rows are 8,192.
  // 511 rows of 32: 256 rows in 8 bits on rank 0, 255 rows in fp32 on rank 1.
  const auto refusal = [](int vocab) {
    const ModelGraph model = small_llama({.vocab = vocab, .hidden = 32});
    ShardingPlan plan = naive_plan(model, {.ranks = 2, .seq_len = 8});
    plan.optimizer.kind = OptimizerKind::adamw_8bit;
    return refusal_of(plan, model);
  };
  CHECK(refusal(512).empty());
  CHECK(refusal(513).empty());
  const std::string said = refusal(511);
  CHECK_MESSAGE(said.find("optimizer.kind: rank 1 of a shard group holds 8,160 elements of "
                          "'model.embed_tokens.weight'") != std::string::npos,
                said);
}

}  // namespace fsdp
