// Memory as PyTorch's own tools show it: the format of torch.cuda.memory._dump_snapshot(), for pytorch.org/memory_viz
// and `python -m torch.cuda._memory_viz`.
//
//   write_file("memory.pickle", memory_snapshot({program, plan, model, allocation_history(...)}));
//
// It holds what the allocator does in init, the first step and steady steps of rank 0, and its segments at the end.
// Where PyTorch writes the lines of Python that allocate, a block has three lines of its own: which buffer it is, the
// operation before which it is allocated ("steady step:120:forward linear ..."), and that operation's unit.
#pragma once

#include <string>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/allocator/replay.h"

namespace fsdp {

struct SnapshotOf {
  const Program& program;
  const ShardingPlan& plan;
  const ModelGraph& model;
  const AllocatorHistory& history;
};
[[nodiscard]] std::string memory_snapshot(const SnapshotOf&);  // a pickle

}  // namespace fsdp
