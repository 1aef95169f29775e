#include "executor/checkpoint/size.h"

#include "executor/checkpoint/pieces.h"
#include "models/input/error.h"
#include "models/units.h"
#include "planner/layout.h"

namespace fsdp {
namespace {

bool savable(const ShardingPlan& plan) {
  try {
    check_savable(plan);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

}  // namespace

CheckpointSize checkpoint_size(const ModelGraph& model, const ShardingPlan& plan) {
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  const std::int64_t states = plan.optimizer.kind == OptimizerKind::adamw ? 3 : 1;  // parameter and moments
  CheckpointSize size;
  const auto add = [&](std::int64_t elements, bool trained) {
    const std::int64_t parts = checked_mul(elements, trained ? states : 1, "checkpoint");
    size.bytes = checked_add(size.bytes, checked_mul(parts, size_of(plan.master_dtype), "checkpoint"), "checkpoint");
  };
  for (const UnitLayout& layout : layouts)
    for (const ShardedParam& p : layout.params) add(p.numel(), p.trainable);
  const std::vector<std::int32_t> owners = unit_of_parameters(layouts, model);
  for (std::size_t p = 0; p < owners.size(); ++p)
    if (owners[p] == kNone) add(model.parameters[p].numel(), model.parameters[p].trainable);
  if (savable(plan)) size.largest_rank_bytes = most_bytes_of_a_rank(model, plan, layouts);
  return size;
}

}  // namespace fsdp
