// Linear layers of torchao's float8 training (torchao 0.18), and te.Linear of TransformerEngine (0.10): rules for the
// stacks that convert them.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/implementation.h"

namespace fsdp::float8 {

// Every cast, its absolute values and its scaling are operators of their own.
[[nodiscard]] OpFacts linear(const Op&, const Workload&);
// Inductor fuses them: a cast reads the tensor, once more where the largest value of all of it comes first.
[[nodiscard]] OpFacts linear_compiled(const Op&, const Workload&);

// What a compiled block keeps for the backward of a layer that reads attention's result, beside that: its cast by
// columns. Other inputs are made again with their casts.
[[nodiscard]] std::int64_t kept_cast_bytes(const Op&, const Workload&, const ModelGraph&);

// What it keeps of weights by columns, where nothing is run again. The time of a copy or a cast counts in backward all
// the same.
void keep_copies(OpFacts&, const Op&, const ModelGraph&, Float8Copies);

// What `selective-op` keeps beside results where its list names aten::abs, of rowwise products: absolute values in 16
// bits, of the weight of a product that is made again, and of an input that backward casts by columns.
[[nodiscard]] std::int64_t kept_absolutes(const Op&, const Workload&, const ModelGraph&, std::int64_t matmul);
// The same before torchao's pull request 1629, which made the weight that backward casts another tensor than forward's:
// of every weight.
[[nodiscard]] std::int64_t kept_absolutes_of_all(const Op&, const Workload&, const ModelGraph&, std::int64_t matmul);

// te.Linear under te.fp8_autocast with DelayedScaling.
[[nodiscard]] OpFacts linear_delayed(const Op&, const Workload&);

// What a stack lacks that converts linear layers to torchao's, as few_families says for those that do not.
[[nodiscard]] std::string_view lacks(const Op&);
// The same of one that takes TransformerEngine's.
[[nodiscard]] std::string_view lacks_but_delayed(const Op&);

}  // namespace fsdp::float8
