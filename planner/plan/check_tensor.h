// The rules of a plan's tensor dimension that need no model; the others are split_over_tensor's (planner/tensor/).
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/plan.h"

namespace fsdp {

void check_tensor(const ShardingPlan&, std::string_view where);
// And this one, of what is recomputed: blocks, not their parts.
void check_tensor_recomputation(const ShardingPlan&, const ModelGraph&, std::string_view where);

// As `check`, where the model has been split over the plan's tensor ranks. With the digest of the whole model, for
// callers that check many plans: it takes longer than all rules.
void check_split(const ShardingPlan&, const ModelGraph& whole, std::string_view digest, const ModelGraph& local,
                 std::string_view where = "plan");
void check_split(const ShardingPlan&, const ModelGraph& whole, const ModelGraph& local,
                 std::string_view where = "plan");

// Of a number of ranks that somebody asks for. Throws InputError(setting("tensor"), ...).
void check_tensor_ranks(std::int64_t tensor, std::int64_t ranks, Dialect);

}  // namespace fsdp
