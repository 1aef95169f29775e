// The model as one rank of a plan computes it: as its implementation builds it, split over the tensor ranks (split.h),
// its ops in the dtypes of the plan's units (unit_dtypes.h) or with peft's casts (adapter_casts.h) or those of autocast
// (prepared_casts.h), its linear layers with the recipe in which the plan multiplies.
//
//   const ModelGraph local = local_model(load_model("llama3-8b"), plan, implementation, "plan.json");
#pragma once

#include <string_view>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"

namespace fsdp {

// Does the implementation build the model in a form of its own, which this is not yet?
[[nodiscard]] bool differs_in_form(const ModelGraph&, const Implementation&);

// Throws as split_over_tensor and with_unit_dtypes do, and InputError(where, ...) for a plan that the implementation's
// form of the model cannot have.
[[nodiscard]] ModelGraph local_model(const ModelGraph&, const ShardingPlan&, const Implementation&,
                                     std::string_view where = "plan");
// False: the model is that of the plan's ranks already.
[[nodiscard]] bool differs_from_local(const ModelGraph&, const ShardingPlan&, const Implementation&);

// The same as transformers builds the model: for `check`, whose rules hold whatever carries a plan out.
[[nodiscard]] ModelGraph local_model(const ModelGraph&, const ShardingPlan&, std::string_view where = "plan");
[[nodiscard]] bool differs_from_local(const ModelGraph&, const ShardingPlan&);

}  // namespace fsdp
