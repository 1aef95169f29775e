// One operation of a Program with all that its kernel needs, for Device::launch_kernel and make_kernel.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/backend.h"
#include "executor/training_inputs.h"
#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"

namespace fsdp {

// Extents come from the model and the layouts, and are compared with the buffers. Argument positions are those that
// planner/program.h lists.
struct KernelCall {
  const ModelGraph& model;
  const ShardingPlan& plan;
  const Program& program;
  const Training& training;
  const Operation& op;
  std::span<const Arg> args;
  std::vector<BufferView> views;  // of args, in order
  std::int64_t rank = 0, step = 0;
  // Copies around a gather: ranks that it is over, fewer than the shards after an integer reshard.
  std::int64_t group = 1;
  bool reduced = false;  // the unit's gradient of this micro-batch has been reduced: what divides it now divides after
};

class KernelSet;
// Host code that computes the operation with the kernels of a set (or puts them on its stream) when it is called. All
// actions but forward, recompute and backward check their buffers now. The set, the model and the program must outlive
// the result.
[[nodiscard]] KernelBody make_kernel(const KernelCall&, const KernelSet&);
// With host_kernel_set().
[[nodiscard]] KernelBody make_kernel(const KernelCall&);

}  // namespace fsdp
