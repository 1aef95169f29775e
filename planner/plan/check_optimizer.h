// The rules of a plan's optimizer. For planner/plan/ alone.
#pragma once

#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

// Its settings, and the dialects and choices with which its memory is known.
void check_optimizer(const ShardingPlan&, std::string_view where);
// Rank 0, whose memory is predicted, keeps as many bytes as any other rank.
void check_optimizer(const ShardingPlan&, const ModelGraph&, const std::vector<UnitLayout>&, std::string_view where);

}  // namespace fsdp
