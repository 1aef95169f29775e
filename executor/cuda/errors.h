// Error texts of CUDA and its libraries, with a remedy. Includes no CUDA header: errors are given by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdp::cuda {

// "rank 3: cudaMalloc of 12.5 GiB for the arena: cudaErrorMemoryAllocation: out of memory; other programs use ..."
// `name` is the error's name in its library, `text` the library's own words (may be empty), rank -1: none in
// particular. Errors without a remedy of their own end after the text.
[[nodiscard]] std::string refusal(std::int64_t rank, std::string_view what, std::string_view name,
                                  std::string_view text);

// Errors after which a GPU's context answers every call with the same error until the process ends.
[[nodiscard]] bool is_sticky(std::string_view name);

}  // namespace fsdp::cuda
