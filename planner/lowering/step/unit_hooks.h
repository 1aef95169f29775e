// Where the hooks of a plan's units lie among the ops of the model, and what they do to the inputs of modules.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/plan_ids.h"
#include "planner/program.h"

namespace fsdp {

struct UnitHooks {
  struct Begin {
    std::int32_t unit = kNone, op_end = kNone;
    bool inputs_require_grad = false;
  };
  struct End {
    std::int32_t unit = kNone, op_begin = kNone;
  };
  std::vector<std::vector<Begin>> begins;  // by op: uses of units that begin there, outermost first
  std::vector<std::vector<End>> ends;      // and those that end there
  // By op: units whose module returns, beside its result, something of what this op makes: PyTorch hooks the backward
  // of both, so that the unit's pre-backward runs once more when the backward comes here.
  std::vector<std::vector<std::int32_t>> returns;
  std::vector<std::vector<std::int32_t>> again_begins;  // the same of units inside what runs again
  std::vector<std::vector<End>> again_ends;
};

// `around`: recomputations lie around the hooks of a unit that is the checkpointed module itself.
[[nodiscard]] UnitHooks unit_hooks(const ModelGraph&, const PlanIds&, const std::vector<UnitLayout>&,
                                   bool around = false);

// The forward ends before op `head`, which runs by itself: units around it end with the op before, and its own `unit`,
// where that holds more, after all of them (fully_shard completes it when the root has ended).
void end_before(UnitHooks&, std::int32_t head, std::int32_t unit);

// fsdp2 casts what a module of a unit is called with to param_dtype: experts that are one multiply by weights that are
// no longer fp32 (OpShape::wide_weight). The model with that said; nothing: the plan casts no such weights.
[[nodiscard]] std::optional<ModelGraph> with_cast_inputs(const ModelGraph&, const ShardingPlan&, const PlanIds&);

}  // namespace fsdp
