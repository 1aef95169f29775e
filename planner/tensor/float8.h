// Which linear layers a plan's float8 converts: torchtitan's filter of torchao's.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp {

// By op: a linear layer whose sides are multiples of 16 and that is not the output layer, the last one of the model.
// Weights that are stored the other way round (GPT-2's) are in no torch.nn.Linear, and stay. All false: no recipe.
[[nodiscard]] std::vector<char> float8_layers(const ModelGraph&, const Float8Plan&);
// By parameter: a weight of such a layer that is gathered in 8 bits.
[[nodiscard]] std::vector<char> float8_gathered(const ModelGraph&, const Float8Plan&);

}  // namespace fsdp
