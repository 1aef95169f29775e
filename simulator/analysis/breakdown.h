// Where the period of a step went.
#pragma once

#include "planner/breakdown.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// Exposed time by class over one period of the compute stream. An interval in which the compute stream is idle is
// charged to the collective (or copy) that runs then, else to `idle`.
[[nodiscard]] Breakdown where_time_goes(const Step&, const Timeline&);

}  // namespace fsdp
