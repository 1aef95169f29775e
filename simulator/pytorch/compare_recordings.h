// A prediction beside what PyTorch's own tools recorded of a run: a memory snapshot, a profiler's trace, or both.
#pragma once

#include <optional>

#include "simulator/pytorch/snapshot.h"
#include "simulator/pytorch/trace.h"
#include "simulator/records/compare.h"

namespace fsdp {

struct Recordings {
  std::optional<RecordedMemory> memory = {};
  std::optional<RecordedTrace> trace = {};
};

// Memory: allocated and reserved peaks, and what the allocated peak is made of. Time: the step, what the compute stream
// does and waits for, collectives by kind and size, those that are exposed though they were not predicted to be. What a
// recording does not say is listed in not_compared. Throws InputError for a trace of another number of ranks.
[[nodiscard]] ValidationReport compare_recordings(const Prediction&, const Recordings&, const Tolerances& = {});

}  // namespace fsdp
