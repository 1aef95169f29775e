// Host memory of what is offloaded, as PyTorch's allocator of pinned memory takes it.
#pragma once

#include <cstdint>

#include "planner/plan.h"
#include "planner/program.h"

namespace fsdp {

// Peak over init and the first steps, in bytes of a rank of the node. Every pinned tensor is rounded up to a power of
// two, to be used again (aten/src/ATen/core/CachingHostAllocator.h): parameters and their gradients under `offload`
// (states, which the CPU steps, are not pinned), states under `offload_optimizer`, inputs under `offload_activations`.
[[nodiscard]] std::int64_t pinned_peak(const Program&, const ShardingPlan&, std::int64_t rank);

}  // namespace fsdp
