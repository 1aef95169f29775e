// What peft's adapters take that is not predicted: copies, and numbers in fp32, where they meet 16 bits.
#pragma once

#include <string>

#include "models/graph.h"
#include "models/implementation.h"
#include "planner/plan.h"

namespace fsdp::cli {

// Lines that end in a line feed, each with the bytes on a rank; empty: no adapters, or none in another type.
[[nodiscard]] std::string adapter_notes(const ShardingPlan&, const ModelGraph&, const Implementation&);

}  // namespace fsdp::cli
