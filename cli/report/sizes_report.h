// What `plan` says of tensor parallelism: which sizes it searched, and why it left the others.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "planner/bound/tensor_sizes.h"

namespace fsdp::cli {

// Empty where one size was asked about.
[[nodiscard]] std::string sizes_line(const SizesResult&);
[[nodiscard]] nlohmann::ordered_json sizes_json(const SizesResult&);

}  // namespace fsdp::cli
