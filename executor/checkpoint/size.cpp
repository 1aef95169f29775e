#include "executor/checkpoint/size.h"

#include "executor/checkpoint/pieces.h"
#include "models/input/error.h"
#include "models/units.h"
#include "planner/layout.h"
#include "planner/layout/optimizer_state.h"
#include "planner/tensor/split.h"

namespace fsdp {
namespace {

constexpr std::int64_t kMostLookedAt = 4096;  // ranks that may each hold another part of each parameter

bool savable(const ShardingPlan& plan) {
  try {
    check_savable(plan);
  } catch (const InputError&) {
    return false;
  }
  return true;
}

// Blocks lie within shards: their scales, and a table per state and shard, are saved as they are held.
CheckpointSize eight_bit_size(const ModelGraph& model, const ShardingPlan& plan,
                              const std::vector<UnitLayout>& layouts) {
  CheckpointSize size;
  const auto add = [&](std::int64_t elements, std::int64_t times, bool trained) {
    const DType kept = plan.kept_dtype(trained);
    std::int64_t each = checked_mul(elements, size_of(kept), "checkpoint");
    if (trained) each += state_count(plan.optimizer) * state_bytes(plan.optimizer.kind, elements, kept);
    size.bytes = checked_add(size.bytes, checked_mul(each, times, "checkpoint"), "checkpoint");
  };
  for (const UnitLayout& layout : layouts)
    for (const ShardedParam& p : layout.params) {
      add(p.padded_shard(), p.rows / p.chunk_rows, p.trainable);
      if (p.rows % p.chunk_rows != 0) add(p.rows % p.chunk_rows * p.row_elements, 1, p.trainable);
    }
  const std::vector<std::int32_t> owners = unit_of_parameters(layouts, model);
  for (std::size_t p = 0; p < owners.size(); ++p)
    if (owners[p] == kNone) add(model.parameters[p].numel(), 1, model.parameters[p].trainable);
  size.read_bytes = static_cast<double>(size.bytes) * static_cast<double>(layouts.back().replicas);
  return size;
}

}  // namespace

CheckpointSize checkpoint_size(const ModelGraph& model, const ShardingPlan& plan) {
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  const std::int64_t states = 1 + state_count(plan.optimizer);  // and the parameter
  CheckpointSize size;
  const std::int64_t replicas = layouts.back().replicas;  // of what has no mesh of its own, such as the root
  const auto add = [&](std::int64_t elements, bool trained, std::int64_t times) {
    const std::int64_t parts = checked_mul(elements, trained ? states : 1, "checkpoint");
    const std::int64_t bytes = checked_mul(parts, size_of(plan.kept_dtype(trained)), "checkpoint");
    size.bytes = checked_add(size.bytes, bytes, "checkpoint");
    size.read_bytes += static_cast<double>(bytes) * static_cast<double>(times);
  };
  if (facts_of(plan.optimizer.kind).eight_bit_block > 0) return eight_bit_size(model, plan, layouts);
  for (const UnitLayout& layout : layouts)
    for (const ShardedParam& p : layout.params) add(p.numel(), p.trainable, layout.replicas);
  const std::vector<std::int32_t> owners = unit_of_parameters(layouts, model);
  for (std::size_t p = 0; p < owners.size(); ++p)
    if (owners[p] == kNone) add(model.parameters[p].numel(), model.parameters[p].trainable, replicas);
  const bool few = plan.dialect == Dialect::fsdp1 ? plan.shard() <= kMostLookedAt
                                                  : plan.own_shard() == 0 || plan.ranks() <= kMostLookedAt;
  if (savable(plan) && few)
    size.largest_rank_bytes = most_bytes_of_a_rank(model, plan, unit_layouts(plan, split_over_tensor(model, plan)));
  return size;
}

}  // namespace fsdp
