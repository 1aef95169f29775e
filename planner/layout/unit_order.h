// The orders in which a plan's units begin and end their forwards: those of forward and backward prefetch. Further
// groups of a unit have no forward of their own, and are left out.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/layout.h"

namespace fsdp {

// Root after root: each before its units, outer before inner.
[[nodiscard]] std::vector<std::int32_t> execution_order(const std::vector<UnitLayout>&);
// Inner before outer, a root after its units.
[[nodiscard]] std::vector<std::int32_t> order_of_ends(const std::vector<UnitLayout>&);

}  // namespace fsdp
