// Arithmetic of reductions for every backend that runs on the host: over the ranks in their order, in double for f64
// and in float otherwise; an average divides once at the end. The result does not depend on how the bytes arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/backend.h"

namespace fsdp::host {

// output[i] = reduction over r of inputs[r][i], for i < count; at least one input. Safe where output is one of the
// inputs: an element is read before it is written. Takes no heap.
void reduce_in_order(DType, Reduction, std::span<const std::byte* const> inputs, std::int64_t count, std::byte* output);

}  // namespace fsdp::host
