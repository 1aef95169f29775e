// What a plan names by text, as ids in its model. `check` and `resolve` look the names up; layouts and lowering use
// ids.
//
//   const PlanIds ids = resolve_ids(plan, model, "plan.json");
//   model.modules[ids.units[3].front()]         // the first module of the plan's fourth unit
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// Modules by name, for many look-ups in one model; the model must outlive it.
class ModuleIndex {
 public:
  explicit ModuleIndex(const ModelGraph&);
  [[nodiscard]] std::int32_t find(std::string_view name) const;  // -1 if absent

 private:
  std::unordered_map<std::string_view, std::int32_t> ids_;
};

struct PlanIds {
  std::vector<std::vector<std::int32_t>> units;   // modules of each unit, in its order
  std::vector<std::int32_t> checkpointed;         // modules
  std::vector<std::int32_t> offload_activations;  // modules
  // `ignored` may name modules and parameters.
  std::vector<std::int32_t> ignored_modules, ignored_parameters;
  std::vector<std::int64_t> shard_dims;  // by parameter: the dimension that is sharded
  friend bool operator==(const PlanIds&, const PlanIds&) = default;
};

// Throws InputError({where, ...}) for a name that the model does not have, and for a dimension that a parameter does
// not have. A plan that has passed `check` has neither.
[[nodiscard]] PlanIds resolve_ids(const ShardingPlan&, const ModelGraph&, std::string_view where = "plan");

}  // namespace fsdp
