// Plans with any of fsdp1's choices, for properties that hold over all of them.
#pragma once

#include <random>

#include "planner/plan.h"
#include "tests/support/refusal.h"
#include "tests/support/toy_model.h"

namespace fsdp::testing {

// At most 6 shards and 3 replicas; valid by construction.
inline ShardingPlan any_flat_plan(const ModelGraph& model, std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  ShardingPlan plan = toy::plan(model, 1 + pick(6), 1 + pick(3));
  plan.dialect = Dialect::fsdp1;
  const bool nested = pick(3) == 0;
  if (nested) plan.units.insert(plan.units.begin(), Unit{{"layers.0.down"}});
  if (pick(6) == 0) plan.units.erase(plan.units.begin(), plan.units.end() - 1);
  for (Unit& u : plan.units) u.reshard_after_forward = Reshard{pick(3) - 1};
  plan.micro_batches.clear();
  for (int m = 1 + pick(3); m > 0; --m) plan.micro_batches.push_back(1 + pick(3));
  plan.grad_sync = static_cast<GradSync>(pick(2));
  plan.forward_prefetch = pick(2);
  plan.backward_prefetch = pick(2);
  plan.backward_post = plan.backward_prefetch == 1 && pick(2) == 0;
  plan.limit_all_gathers = pick(3) > 0;
  plan.use_orig_params = pick(2) == 0;
  if (pick(2)) plan.param_dtype = DType::bf16;
  if (pick(2)) plan.reduce_dtype = DType::bf16;
  plan.offload = plan.shard() > 1 && pick(4) == 0;
  if (plan.offload) plan.grad_sync = GradSync::last;
  if (!plan.offload && pick(2)) plan.clip_norm = 1.0;
  if (!nested && pick(3) == 0) plan.checkpointed = {"layers.0"};
  if (holds(refusal([&] { check(plan, model); }), "the gradient of a tied weight"))
    plan.use_orig_params = false;  // PyTorch raises
  check(plan, model);
  return plan;
}

}  // namespace fsdp::testing
