// Which style each module of a model has in a tensor plan, and the patterns of names that say it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// By module. Throws InputError({where, "tensor_plan..."}, ...) for a pattern that matches no module and for a module
// that two of them split in different ways.
[[nodiscard]] std::vector<std::optional<TensorStyle>> styles_of_modules(const TensorPlan&, const ModelGraph&,
                                                                        std::string_view where);

// "model.layers.3.mlp.up_proj" -> "model.layers.*.mlp.up_proj".
[[nodiscard]] std::string pattern_of(std::string_view name);
// Whether a module's name is of that pattern: a "*" stands for one part of a name.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

}  // namespace fsdp
