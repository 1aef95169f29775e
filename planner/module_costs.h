// The cost of each module by itself: the table of `show model --costs`.
//
//   for (const ModuleCost& c : module_costs(context)) ... c.all_gather, c.forward ...
//
// A module's collectives are priced as if it were one unit; its kernels as if each had the GPU to itself. Children
// are included in their parents, so rows do not add up over the whole list; the root's row is the model.
#pragma once

#include <cstdint>
#include <vector>

#include "models/units.h"
#include "planner/costs.h"

namespace fsdp {

struct ModuleCost {
  std::int32_t module = kNone;         // id in ModelGraph::modules
  std::int64_t parameters = 0;         // elements; a tied parameter counts where it is registered
  Bytes shard;                         // its padded shards on one rank, in the master dtype
  Seconds all_gather, reduce_scatter;  // of all its parameters at once, alone
  Seconds forward, backward;           // of its ops, one micro-batch, alone
  Bytes saved;                         // what its forward keeps for backward, one micro-batch, no checkpointing
};

// One per module, in model order. The micro-batch is the plan's first; the plan's own units and checkpointing do not
// matter.
[[nodiscard]] std::vector<ModuleCost> module_costs(const CostContext&);

}  // namespace fsdp
