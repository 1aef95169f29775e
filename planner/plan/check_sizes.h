// Rules of a plan that bound sizes: what passes has no product that overflows (models/input/limits.h). Called by
// `check`; each throws InputError(where: field, ...).
#pragma once

#include <string_view>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// Sequences and tokens of the micro-batches, by themselves.
void check_batches(const ShardingPlan&, std::string_view where);
// What the model makes of them: operations of a step, elements of a micro-batch, positions.
void check_sizes(const ShardingPlan&, const ModelGraph&, std::string_view where);

}  // namespace fsdp
