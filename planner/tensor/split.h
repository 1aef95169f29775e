// What one rank of a tensor group computes: the model with its parameters and ops in the shapes of the rank's part, and
// the redistributions between them, each an op like any other. Everything after `resolve` prices, lowers and draws that
// graph.
//
//   const ModelGraph local = split_over_tensor(load_model("llama3-8b"), plan, "plan.json");   // tensor 8
//   local.tensor_ranks                               -> 8
//   local.parameters[1].shape                        -> {512, 4096}: q_proj's rows of one rank
//   local.ops[2]                                     -> redistribute (gather) in model.layers.0.self_attn
//
// Sequence parallelism, as torchtitan's plan for Llama: between the split parts of a block each rank holds its part of
// every sequence. Before a colwise module the parts are gathered, once for all that read them; behind a rowwise one the
// sums are scattered.
#pragma once

#include <string_view>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// The same model for a plan without a tensor dimension. Throws InputError({where, ...}): a pattern of the tensor plan
// that matches no module, a module that two of them split in different ways or none does, heads or other sizes that the
// tensor ranks do not divide, ops that cannot be split as the plan says.
[[nodiscard]] ModelGraph split_over_tensor(const ModelGraph&, const ShardingPlan&, std::string_view where = "plan");

}  // namespace fsdp
