// A model with adapters as peft's layers compute it: what an adapter reads is cast to the type of its first weight, as
// that is outside of its unit, and the sum with the layer's result back to the type of that.
//
//   plan.trained_dtype = DType::f32;                  // adapters in fp32 beside weights in bf16, under ddp
//   const ModelGraph m = with_adapter_casts(model, plan, "plan.json");
//   m.ops                                             -> cast to fp32, A and B in fp32, sum, cast to bf16
//
// (peft 0.21, tuners/lora/layer.py, Linear.forward and _cast_input_dtype.) Where a unit holds the layer its weights are
// in param_dtype there, and nothing is cast. Where the first weight is a unit of its own, what is outside of the unit
// is its shard: peft casts to the type of that, and the unit's hook to param_dtype.
#pragma once

#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"

namespace fsdp {

// Of the first weight of an adapter: as peft's layer sees it, and as it is multiplied with.
struct AdapterTypes {
  DType outside{}, inside{};
  bool dropped_outside = false;  // in a unit of its own, whose hook comes between the dropout and the product
  friend auto operator<=>(const AdapterTypes&, const AdapterTypes&) = default;
};
// Of each adapter, in forward order: all that casts depend on. Of none where units differ otherwise, or the model is as
// PyTorch exported it: what is cast there is not known, or the model's own.
[[nodiscard]] std::vector<AdapterTypes> adapter_types(const ModelGraph&, const ShardingPlan&);

// Does any adapter compute in another type than what it reads?
[[nodiscard]] bool adapters_compute_apart(const ModelGraph&, const ShardingPlan&);
// The same, or is what it reads cast, or dropped, outside of its unit?
[[nodiscard]] bool casts_for_adapters(const ModelGraph&, const ShardingPlan&);

// Throws InputError({where, "units"}) where the two weights of an adapter compute in different types.
[[nodiscard]] ModelGraph with_adapter_casts(const ModelGraph&, const ShardingPlan&, std::string_view where = "plan");

// For lower bounds over plans whose units differ: casts for adapters in units of their own depend on the units, and no
// plan takes less with them.
[[nodiscard]] Implementation without_unit_casts(Implementation, const ModelGraph&, const ShardingPlan& base);

}  // namespace fsdp
