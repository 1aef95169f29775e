#include "executor/checkpoint/size.h"

#include <algorithm>

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

// Ranks of the first shard hold as much as any others: rows are dealt out in equal chunks, the last ones short.
std::int64_t largest_rank(const ModelGraph& model, const ShardingPlan& plan, const std::vector<UnitLayout>& layouts) {
  const bool replicated = plan.dialect == Dialect::ddp;
  const std::int64_t replicas = replicated ? plan.ranks() : plan.replicate(), apart = replicated ? 1 : plan.shard();
  std::int64_t most = 0;
  for (std::int64_t replica = 0; replica < replicas; ++replica) {
    std::int64_t bytes = 0;
    for (const Piece& p : pieces_to_write(model, plan, layouts, replica * apart)) bytes += p.bytes;
    most = std::max(most, bytes);
  }
  return most;
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
  if (savable(plan)) size.largest_rank_bytes = largest_rank(model, plan, layouts);
  return size;
}

}  // namespace fsdp
