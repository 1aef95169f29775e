// The default plan of a model: the baseline that a search must beat, and the choices that it shares with a search.
//
//   ShardingPlan plan = naive_plan(model, PlanOptions{.ranks = 8, .seq_len = 8192, .micro_batches = {1}});
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// What a user fixes before units are chosen; the rest of a plan's fields keep their defaults.
struct PlanOptions {
  std::int64_t ranks = 1, replicate = 1, tensor = 1;
  std::int64_t seq_len = 0;
  std::vector<std::int64_t> micro_batches = {1};
  Reshard reshard = Reshard::automatic;  // for every unit
  Dialect dialect = Dialect::fsdp2;
};

// The baseline that every search must beat: one unit per block, the rest in the root, default reshard, no
// checkpointing.
[[nodiscard]] ShardingPlan naive_plan(const ModelGraph&, const PlanOptions&);

// Experts are stacked along dimension 0, which is short: with more ranks than experts most would hold nothing of them,
// and padding. There dimension 1 is sharded instead, if the ranks divide it (as torchtitan does); fsdp2 only.
// naive_plan and the search set it.
[[nodiscard]] std::vector<ShardDim> expert_shard_dims(const ModelGraph&, Dialect, std::int64_t shards);

// Shards the parameters of experts over groups of `ranks` consecutive ranks, beside a plan's mesh for all others: of
// each unit around experts a further group (Unit::group_of), and a unit of experts alone itself. Throws
// InputError(where: ...) for a model without experts; whether the number fits the mesh, `check` says.
void set_expert_shard(ShardingPlan&, const ModelGraph&, std::int64_t ranks, const Origin& where);

// The output layer runs with each of the plan's loss chunks and stays gathered between them (LoopPlan::chunk_head), as
// torchtitan's loss has it since April 2026 of one micro-batch. False: there is no such layer, it ends no unit,
// or is tied to the embedding, and the plan is as it was.
bool run_head_in_chunks(ShardingPlan&, const ModelGraph&);
[[nodiscard]] bool can_run_head_in_chunks(const std::vector<Unit>&, const ModelGraph&);

// Reshard after forward for every unit; automatic leaves what the wrap policy chose. ddp reshards nothing, so there all
// are automatic.
void set_reshard(ShardingPlan&, Reshard);

}  // namespace fsdp
