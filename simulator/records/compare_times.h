// Where a step's time was predicted and where it went: rows, and the largest disagreements in words. For compare.cpp
// alone.
#pragma once

#include "simulator/records/compare.h"

namespace fsdp {

// Fills by_action, by_unit, where, by_rank, findings, not_compared.
void compare_times(const Prediction&, const Measurement&, ValidationReport&);

}  // namespace fsdp
