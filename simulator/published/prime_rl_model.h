// What prime-rl's models have that transformers' and torchtitan's (models/graph/experts.h) have not. No plan
// can say it; a published run can have it.
#pragma once

#include <cstdint>

#include "models/graph.h"

namespace fsdp {

// Adapters of every matrix of every expert, [experts, rank, in] and [experts, out, rank], in one grouped product each.
// Of a model whose linear layers have adapters already (models/graph/lora.h).
[[nodiscard]] ModelGraph adapt_experts(ModelGraph, std::int64_t rank);

// Each adapter `held` times, of which the first alone is used. Those of a linear layer are stacked, so that all have a
// gradient; of experts the others have none.
[[nodiscard]] ModelGraph hold_adapters(ModelGraph, std::int64_t held);

// The experts of `adapt_experts` and `hold_adapters` multiplied one after the other, each with its adapters
// (is_expert_in_turn, models/graph.h), as where prime-rl does not group products. All have equally many rows.
[[nodiscard]] ModelGraph multiply_in_turn(ModelGraph);

}  // namespace fsdp
