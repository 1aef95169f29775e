// What an optimizer keeps of a unit's trained parameters on one rank, to the byte.
//
// PyTorch's optimizers keep a tensor of the shard's shape and dtype. torchao's 8-bit ones do so too for a shard of less
// than 4,096 elements, or of elements that are no multiple of the block; of any other shard they keep a byte per
// element, an fp32 scale per block and a table of 256 fp32 values (docs/fsdp-order.md A1.14).
#pragma once

#include <cstdint>
#include <vector>

#include "models/dtype.h"
#include "planner/layout.h"
#include "planner/optimizer.h"

namespace fsdp {

// Elements of each tensor that the optimizer sees: of each trained parameter, or of fsdp1's flat one.
[[nodiscard]] std::vector<std::int64_t> optimizer_elements(const UnitLayout&, std::int64_t shard_rank);

// Bytes of the tensors of one state of a parameter with that many elements on this rank, in the order in which they are
// allocated.
[[nodiscard]] std::vector<std::int64_t> state_tensors(OptimizerKind, std::int64_t elements, DType);
[[nodiscard]] std::int64_t state_bytes(OptimizerKind, std::int64_t elements, DType);
// Bytes of what a step of that parameter alone allocates and frees: the new scales of 8-bit states.
[[nodiscard]] std::vector<std::int64_t> step_tensors(OptimizerKind, std::int64_t elements);
// Bytes of one state of all that the unit holds.
[[nodiscard]] std::int64_t state_bytes(OptimizerKind, const UnitLayout&, std::int64_t shard_rank, DType);

}  // namespace fsdp
