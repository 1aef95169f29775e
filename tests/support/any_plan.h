// Plans with any of a dialect's choices, for properties that hold over all of them.
#pragma once

#include <algorithm>
#include <random>

#include "planner/plan.h"
#include "tests/support/refusal.h"
#include "tests/support/toy_model.h"

namespace fsdp::testing {

// A plan with any of fsdp2's choices; valid by construction.
inline ShardingPlan any_plan(ModelGraph& model, bool repeats, std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (Parameter& p : model.parameters) p.trainable = pick(6) != 0;
  model.parameters.back().trainable = true;
  const std::int64_t shards[] = {1, 2, 3, 4, 6, 8};
  ShardingPlan plan = toy::plan(model, shards[pick(6)], 1 + pick(3));
  plan.model_digest = model.digest();
  const TorchVersion versions[] = {{}, {}, {}, {2, 6}, {2, 8}, {2, 11}, {2, 12}, {2, 14}};
  plan.torch = versions[pick(8)];
  const auto since = [&](int minor) { return !plan.torch.before(2, minor); };
  plan.units.pop_back();
  if (!repeats && pick(3) == 0 && plan.units.size() > 1) {
    plan.units[0].modules.push_back(plan.units[1].modules[0]);
    plan.units.erase(plan.units.begin() + 1);
  }
  if (pick(3) == 0 && model.parameters[0].aliases.empty()) plan.units.insert(plan.units.begin(), {{"embed"}});
  if (pick(3) == 0) plan.units.insert(plan.units.begin(), {{"layers.0.down"}});
  plan.units.push_back({{""}});
  if (pick(2)) plan.param_dtype = DType::bf16;
  const DType reduce[] = {DType::f32, DType::bf16, DType::f16};
  plan.reduce_dtype = reduce[pick(3)];
  plan.micro_batches.clear();
  for (int m = repeats ? 1 : 1 + pick(3); m > 0; --m) plan.micro_batches.push_back(1 + pick(2));
  plan.grad_sync = static_cast<GradSync>(pick(plan.replicate() > 1 ? 3 : 2));
  plan.forward_prefetch = pick(3);
  plan.backward_prefetch = pick(3);
  plan.offload = pick(3) == 0;
  plan.offload_optimizer = !plan.offload && state_count(plan.optimizer) > 0 && pick(4) == 0;
  plan.force_sum_reduction = since(8) && pick(4) == 0;
  plan.separate_reduce_scatter = since(13) && pick(3) == 0;
  if (since(13) && pick(3) == 0) plan.reduce_scatter_buffers = 1 + pick(4);
  if (!repeats && pick(3) == 0) plan.checkpointed = {"layers.0"};
  if (plan.param_dtype == plan.master_dtype && pick(4) == 0) plan.ignored = {pick(2) ? "head" : "layers.0.up.weight"};
  if (plan.ignored.empty() && pick(2)) plan.clip_norm = 1.0;
  const bool dims = pick(4) == 0 && model.parameters[1].shape[1] % plan.shard() == 0;
  if (dims) plan.shard_dims = {{model.parameters[1].name, 1}};
  for (Unit& u : plan.units) {
    std::vector<Reshard> choices = {Reshard::automatic, Reshard::yes, Reshard::no};
    for (const std::int64_t n : {2, 3, 4, 8})
      if (!dims && plan.shard() % n == 0) choices.push_back({n});
    u.reshard_after_forward = choices[static_cast<std::size_t>(pick(static_cast<int>(choices.size())))];
    u.reshard_after_backward = pick(4) != 0;
    if (u.modules.front() == "embed") u.unshard_in_backward = pick(2) != 0;
    if (pick(4) == 0) u.grad_sync = static_cast<GradSync>(pick(plan.replicate() > 1 ? 3 : 2));
    if (plan.shard() > 1 && since(8) && pick(4) == 0) u.gradient_divide_factor = 1 + pick(9);
    for (auto* list : {&u.forward_prefetch, &u.backward_prefetch})
      if (pick(3) == 0)
        for (int k = pick(4), n = static_cast<int>(plan.units.size()); k > 0; --k)
          list->push_back(plan.units[static_cast<std::size_t>(pick(n))].modules.front());
  }
  return plan;
}

// A plan with any of fsdp1's choices: at most 6 shards and 3 replicas, 8 ranks; valid by construction.
inline ShardingPlan any_flat_plan(const ModelGraph& model, std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int shards = 1 + pick(6);
  ShardingPlan plan = toy::plan(model, shards, 1 + pick(std::min(3, 8 / shards)));
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
  const auto of_block = [](const Unit& u) { return u.modules.front() == "layers.0"; };
  plan.reentrant =
      !plan.checkpointed.empty() && std::any_of(plan.units.begin(), plan.units.end(), of_block) && pick(2) == 0;
  if (holds(refusal([&] { check(plan, model); }), "the gradient of a tied weight"))
    plan.use_orig_params = false;  // PyTorch raises
  check(plan, model);
  return plan;
}

}  // namespace fsdp::testing
