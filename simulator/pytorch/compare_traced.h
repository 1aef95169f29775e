// A predicted step beside one that torch.profiler recorded: of a trace, or of a measurement that holds one.
#pragma once

#include "simulator/records/compare.h"
#include "simulator/traced/traced_step.h"

namespace fsdp {

// What the compute stream does and waits for, collectives by kind and size, those that are exposed though they were not
// predicted to be: fills where, by_action, findings, not_compared. Throws InputError for a prediction that does not say
// when each operation runs (--json=brief, an earlier version).
void compare_traced(const Prediction&, const TracedStep& recorded, ValidationReport&);

// The same of what record() profiled on every rank. A collective's time is that of the rank that came last, since the
// others wait for it; a rank that all others wait for is a finding. Of ranks on processors nothing is compared, and
// not_compared says what was seen. Does nothing for a measurement without profiles.
void compare_profiles(const Prediction&, const Measurement&, ValidationReport&);

// Of findings: the largest first, a few.
void keep_largest(ValidationReport&);

}  // namespace fsdp
