// The model as units compute it that differ in their dtype: each op in the dtype of its unit, and a cast wherever the
// hooks of fully_shard cast what a unit's modules are called with, or return (docs/fsdp-order.md, "A dtype per unit").
//
//   plan.units[3].param_dtype = DType::f32;          // one block of a model in bf16
//   const ModelGraph m = with_unit_dtypes(model, plan, "plan.json");
//   m.ops[i]                                         -> cast, bf16 to fp32, before the block's first op
//
// A cast belongs to the module around the unit's: it runs before the unit is gathered, and its backward after the
// unit's gradients are reduced.
#pragma once

#include <string_view>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// Throws InputError({where, "units"}) where an op would read tensors or weights of two dtypes (PyTorch raises, or
// promotes to the wider one, which is not known here), and for models whose casts are not known: exported ones,
// mixtures of experts, modules of units that run more than once in a forward.
[[nodiscard]] ModelGraph with_unit_dtypes(const ModelGraph&, const ShardingPlan&, std::string_view where = "plan");

}  // namespace fsdp
