// Where the period of a step went.
#pragma once

#include <vector>

#include "planner/breakdown.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// Exposed time by class over one period of the compute stream. An interval in which the compute stream is idle is
// charged to the collective (or copy) that runs then, else to `idle`.
[[nodiscard]] Breakdown where_time_goes(const Step&, const Timeline&);

// A part of the period in which communication, a copy or the optimizer runs and the compute stream does not compute.
// The spans of one part sum to that part of where_time_goes, except for copies and the optimizer, which also run on the
// compute stream.
struct ExposedSpan {
  Seconds Breakdown::*part = nullptr;
  Span span;
};
[[nodiscard]] std::vector<ExposedSpan> exposed_spans(const Step&, const Timeline&);  // by start

}  // namespace fsdp
