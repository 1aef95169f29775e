// Linear layers of torchao's float8 training (torchao 0.18): rules for the stacks that convert them.
#pragma once

#include <string_view>

#include "models/implementation.h"

namespace fsdp::float8 {

// Every cast, its absolute values and its scaling are operators of their own.
[[nodiscard]] OpFacts linear(const Op&, const Workload&);
// Inductor fuses them: a cast reads the tensor, once more where the largest value of all of it comes first.
[[nodiscard]] OpFacts linear_compiled(const Op&, const Workload&);

// What a stack lacks that converts linear layers, as few_families says for those that do not.
[[nodiscard]] std::string_view lacks(const Op&);

}  // namespace fsdp::float8
