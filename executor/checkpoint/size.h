// How large a checkpoint is before it is written.
#pragma once

#include <cstdint>
#include <optional>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

struct CheckpointSize {
  // Tensors: parameters and, of trained ones, the optimizer's states, in the plan's master dtype. Each element once,
  // whatever the number of replicas. Headers and the manifest come on top (some 0.1 % or less of a model that needs
  // sharding).
  std::int64_t bytes = 0;
  // Of these, what the rank that writes most writes. None: this plan's checkpoints are not written by `run`
  // (check_savable), or it has so many flat shards (fsdp1), or ranks beside a mesh of some units'
  // own, that what each holds is not looked at.
  std::optional<std::int64_t> largest_rank_bytes;
  double read_bytes = 0;  // what all ranks read together: each element as often as there are replicas of it
};
[[nodiscard]] CheckpointSize checkpoint_size(const ModelGraph&, const ShardingPlan&);

}  // namespace fsdp
