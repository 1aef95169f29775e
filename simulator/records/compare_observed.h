// A comparison of a prediction with what a recorder of PyTorch could see of a run (Measurement::observed).
#pragma once

#include "simulator/records/compare.h"

namespace fsdp {

// Order: the observed actions in the order in which the host issued them, on every rank that was recorded. Memory:
// bytes allocated at those moments, equal where they differ by no more than the tolerance times the peak. Time: the
// median step. Throws InputError for a prediction of an earlier version, which does not say when the host issues what,
// and for an observed thing that is unknown.
[[nodiscard]] ValidationReport compare_observed(const Prediction&, const Measurement&, const Tolerances&);

}  // namespace fsdp
