// prime-rl's trainers as published runs have them; no name on the command line stands for them.
#pragma once

#include "models/attention_kernel.h"
#include "models/implementation.h"

namespace fsdp {

// With FlashAttention-2 or -3; one of the program's constants.
[[nodiscard]] const Implementation& prime_rl_implementation(AttentionKernel);

}  // namespace fsdp
