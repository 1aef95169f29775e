// Which style each module of a model has in a tensor plan. For planner/tensor/ alone.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// By module. Throws InputError({where, "tensor_plan..."}, ...) for a pattern that matches no module and for a module
// that two of them split in different ways.
[[nodiscard]] std::vector<std::optional<TensorStyle>> styles_of_modules(const TensorPlan&, const ModelGraph&,
                                                                        std::string_view where);

}  // namespace fsdp
