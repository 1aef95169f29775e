// A trace of torch.profiler (Kineto's Chrome trace), of one rank: the kernels of its steps, or its operators on
// processors.
//
//   const RecordedTrace t = read_trace(read_file("trace.json"), "trace.json");
//   t.step.duration, t.step.collectives        // of the step of median duration
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "simulator/traced/traced_step.h"

namespace fsdp {

struct RecordedTrace {
  std::int64_t steps = 1;                             // that were recorded whole
  bool marked = false;                                // by profiler.step(); else the whole trace counts as one step
  std::optional<std::int64_t> rank = {}, ranks = {};  // where the trace says them
  TracedStep step;
};

// Of a GPU. Steps begin at the first kernel that the host launched after a mark of profiler.step(). The compute stream
// is the one with the most time in kernels that are no collectives. Throws InputError for what is no such trace, for
// one without kernels of a GPU, and for one of several GPUs.
[[nodiscard]] RecordedTrace read_trace(std::string_view text, std::string_view where);

// The same; of a trace without kernels of a GPU, operators that no other calls are the kernels, of all threads, and
// gloo's collectives the collectives (gloo reduces and scatters by an all-reduce, and says no sizes).
[[nodiscard]] RecordedTrace read_any_trace(std::string_view text, std::string_view where);

// "fsdp-plan/trace-view/1": what `show trace --json` prints, and record() keeps.
[[nodiscard]] std::string to_json_text(const RecordedTrace&);

}  // namespace fsdp
