// One operation of a Program, for whoever makes its kernel: the host's (make_kernel, run_kernels.cpp) or another
// machine's (Device::launch_kernel).
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

// Extents come from the model and the layouts, and are compared with the buffers that it was given. Argument positions
// are those that planner/program.h lists.
struct KernelCall {
  const ModelGraph& model;
  const ShardingPlan& plan;
  const Program& program;
  const Training& training;
  const Operation& op;
  std::span<const Arg> args;
  std::vector<BufferView> views;  // of args, in order
  std::int64_t rank = 0, step = 0;
  std::int64_t group =
      1;  // copies around a gather: ranks that it is over, fewer than the shards after an integer reshard
};

// A machine's kernel, by its Action: what it does, or puts on a stream, when it is called. All but forward, recompute
// and backward check their buffers when they are made. The machine, the model and the program must outlive it. Without
// a machine: the host.
class KernelSet;
[[nodiscard]] KernelBody make_kernel(const KernelCall&, const KernelSet&);
[[nodiscard]] KernelBody make_kernel(const KernelCall&);

}  // namespace fsdp
