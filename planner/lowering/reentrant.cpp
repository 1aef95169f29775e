#include "planner/lowering/reentrant.h"

#include <algorithm>

#include "models/index.h"

namespace fsdp {

Reentrant reentrant_checkpoints(const ShardingPlan& plan, const ModelGraph& model, const PlanIds& ids,
                                const std::vector<UnitLayout>& layouts) {
  Reentrant out{plan.reentrant || model.prepared};  // trl's of a prepared model
  std::vector<std::int32_t> producer(model.tensors.size(), kNone);
  for (std::size_t i = 0; i < model.ops.size(); ++i)
    for (const std::int32_t t : model.ops[i].outputs) producer[at(t)] = static_cast<std::int32_t>(i);
  for (const std::int32_t id : plan.reentrant ? ids.checkpointed : std::vector<std::int32_t>{}) {
    const Module& again = model.modules[at(id)];
    const bool held = std::any_of(layouts.begin(), layouts.end(), [&](const UnitLayout& u) {
      if (u.params.empty() || u.trained()) return false;
      return std::any_of(u.uses.begin(), u.uses.end(), [&](const UnitUse& use) {
        const auto& inputs = model.ops[at(use.op_begin)].inputs;
        return use.inputs_require_grad && use.op_begin >= again.op_begin && use.op_end <= again.op_end &&
               std::any_of(inputs.begin(), inputs.end(),
                           [&](std::int32_t t) { return producer[at(t)] < again.op_begin; });
      });
    });
    if (held) out.leaves_held.push_back(id);
  }
  return out;
}

}  // namespace fsdp
