// transformers' fsdp_plan: rules that name modules ("model.layers.*", "lm_head": * is a number), each freeing the full
// weight after forward or keeping it, and the units that its apply_fully_sharded_data_parallelism makes of them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

using FsdpRules = std::map<std::string, bool>;  // pattern: is the full weight kept?

[[nodiscard]] std::string rule_pattern(std::string_view module);  // "model.layers.3.mlp" -> "model.layers.*.mlp"
[[nodiscard]] bool rule_names(std::string_view rule, std::string_view module);
// Each module that a rule names is a unit; a last norm and an output head (or a tied embedding) that are all that is
// kept are one unit. Modules that no rule names are left to the root. Where embedding and head share their weight, the
// embedding's own rule does not count, as in transformers' _resolve_tied_embed_lm_head_plan: a head that is kept is one
// unit with it, and else it is the root's.
[[nodiscard]] std::vector<Unit> units_of_rules(const FsdpRules&, const ModelGraph&);
// Is this such a unit of norm and head? transformers finds the norm by its name.
[[nodiscard]] bool is_norm_and_head(const Unit&, const ModelGraph&);

}  // namespace fsdp
