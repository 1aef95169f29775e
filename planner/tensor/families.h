// The tensor plan of a model's family: what each of its modules is split by, as torchtitan parallelizes Llama and
// Qwen3. A plan's file holds it, where a user can change it.
//
//   set_tensor(plan, load_model("llama3-70b"), 8);    // a mesh dimension "tensor" of 8, and the family's plan
#pragma once

#include <cstdint>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// Throws InputError(setting("tensor"), ...) for a model of another family.
[[nodiscard]] TensorPlan family_tensor_plan(const ModelGraph&);

// Nothing for one rank.
void set_tensor(ShardingPlan&, const ModelGraph&, std::int64_t ranks);

}  // namespace fsdp
