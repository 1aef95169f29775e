// What a rank holds between two steps: what a checkpoint saves.
#pragma once

#include <cstdint>
#include <functional>

#include "executor/backend.h"
#include "executor/training_inputs.h"
#include "planner/program.h"

namespace fsdp {

struct RankState {
  const Program& program;
  Device& device;
  std::int64_t steps_done = 0;  // of training, this run's included
  // One unit's padded shard, or one of its moments (unpadded, dense, in parameter order: planner/layout.h). Data null:
  // the rank holds none.
  std::function<BufferView(std::int32_t unit, StatePart)> view;
  bool last = false;  // step of this run
};

}  // namespace fsdp
