// prime-rl's trainers as published runs have them; no name on the command line stands for them.
#pragma once

#include "models/attention_kernel.h"
#include "models/implementation.h"

namespace fsdp {

// What its adapters are multiplied by: nothing, one grouped product for all adapters (Hopper), or one after the other.
enum class PrimeRlAdapters : std::uint8_t { none, grouped, in_turn };

// transformers' dense decoders, or prime-rl's own models, which are those with experts, with adapters of these or none.
enum class PrimeRlModel : std::uint8_t { of_transformers, experts, adapted_experts };

// With FlashAttention-2 or -3; one of the program's constants.
[[nodiscard]] const Implementation& prime_rl_implementation(AttentionKernel, PrimeRlAdapters,
                                                            PrimeRlModel = PrimeRlModel::of_transformers);

}  // namespace fsdp
