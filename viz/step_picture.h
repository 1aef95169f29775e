// What the picture of a step is drawn from.
#pragma once

#include <span>

#include "models/graph.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// The references live during the call only.
struct StepPicture {
  const Program& program;
  const ShardingPlan& plan;
  const ModelGraph& model;
  const Timeline& timeline;                  // of the steady step
  Demands demands = {};                      // of its operations; may be empty (measured)
  const MemoryTimeline* measured = nullptr;  // what the allocator counted, of a measured step
};

}  // namespace fsdp
