// What pictures say of a plan's units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/plan.h"

namespace fsdp {

// Is any of the plan's recomputed modules in the unit's modules or around them?
[[nodiscard]] bool recomputes(const Unit&, const ShardingPlan&);

// By unit: the unit around it; -1: none (the root).
[[nodiscard]] std::vector<std::int32_t> units_around(const ShardingPlan&);

// "gathered again for backward", "kept until backward", "kept over groups of 8 ranks"; of ddp "whole on every rank".
[[nodiscard]] std::string reshard_words(const ShardingPlan&, std::size_t unit);

}  // namespace fsdp
