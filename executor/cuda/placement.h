// Which rank computes on which GPU.
#pragma once

#include <cstdint>
#include <vector>

namespace fsdp::cuda {

// The driver's number of the GPU of each rank. `present`: how many the driver shows; `wanted`: which to use (empty: all). With `together` all ranks share the
// first of them. Throws InputError: a mesh without ranks, a GPU that is not there or named twice, fewer GPUs than ranks.
[[nodiscard]] std::vector<int> place_ranks(std::int64_t ranks, int present, const std::vector<int>& wanted, bool together);

}  // namespace fsdp::cuda
