// Rules of the dtypes of a plan: of units that have a mixed precision of their own, and of linear layers that multiply
// in 8 bits or are kept in 4 (what torchao, bitsandbytes and fully_shard accept, and what is known of them here).
#pragma once

#include <string_view>
#include <vector>

#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

// What needs no model; what the ops of one say is planner/tensor/unit_dtypes.h's.
void check_dtypes(const ShardingPlan&, std::string_view where);

void check_float8(const ShardingPlan&, std::string_view where);
void check_float8(const ShardingPlan&, const ModelGraph&, const std::vector<UnitLayout>&, std::string_view where);

// Weights in 4 bits stand in elements of 16 bits, which no cast may change.
void check_four_bits(const ShardingPlan&, const ModelGraph&, const std::vector<UnitLayout>&, std::string_view where);

// A type of trained parameters' own needs frozen ones beside them, and what casts between the two.
void check_trained_dtype(const ShardingPlan&, const ModelGraph&, std::string_view where);

}  // namespace fsdp
