// What is to be said of a plan's adapters.
#pragma once

#include <string>

#include "models/graph.h"
#include "planner/plan.h"

namespace fsdp::cli {

// A line that ends in a line feed, where adapters are in 16 bits and peft's would not be; else empty.
[[nodiscard]] std::string adapter_notes(const ShardingPlan&, const ModelGraph&);

}  // namespace fsdp::cli
