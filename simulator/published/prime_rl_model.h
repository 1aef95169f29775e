// What prime-rl's models have that transformers' have not. No plan can say it; a published run can have it.
#pragma once

#include <cstdint>

#include "models/graph.h"

namespace fsdp {

// Its own models of experts keep gate and up in two parameters, w1 and w3, and sort rows outside of their experts.
[[nodiscard]] ModelGraph separate_gate_and_up(ModelGraph);

// Its shared expert runs when the experts' rows have been weighted, which are then added to its result; its routers
// multiply in 16 bits. Of a graph in the order of transformers' GLM-4.5; one without shared experts stays as it is.
[[nodiscard]] ModelGraph share_before_combining(ModelGraph);

// Adapters of every matrix of every expert, [experts, rank, in] and [experts, out, rank], in one grouped product each.
// Of a model whose linear layers have adapters already (models/graph/lora.h).
[[nodiscard]] ModelGraph adapt_experts(ModelGraph, std::int64_t rank);

// Each adapter `held` times, of which the first alone is used. Those of a linear layer are stacked, so that all have a
// gradient; of experts the others have none.
[[nodiscard]] ModelGraph hold_adapters(ModelGraph, std::int64_t held);

}  // namespace fsdp
