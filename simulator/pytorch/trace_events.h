// The events of a Chrome trace, read one by one: a trace may have hundreds of megabytes, so no tree of it is built. For
// trace.cpp alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A slice (phase "X") with what is asked of its "args".
struct TraceEvent {
  std::string category, name;
  double start = 0, duration = 0;       // microseconds
  std::int64_t process = 0, track = 0;  // of a kernel: the GPU and the stream
  std::int64_t correlation = -1;        // the same for a launch and its kernel
  std::string collective, dtype;        // "Collective name": "_allgather_base"; "dtype": "BFloat16"
  std::int64_t elements_in = -1, elements_out = -1;
};

[[nodiscard]] bool is_mark(const TraceEvent&);  // of profiler.step()

struct TracedEvents {
  std::vector<TraceEvent> slices;  // of GPUs, of launches and of marks; of the host where asked for; no others
  std::optional<std::int64_t> rank, ranks;
  bool any = false;  // an event of any sort was there
};

enum class Slices { of_gpu, of_host };

// of_host: operators of PyTorch on processors and gloo's collectives. Throws InputError: no JSON, no "traceEvents", an
// event whose fields are not what they should be.
[[nodiscard]] TracedEvents read_trace_events(std::string_view text, std::string_view where, Slices = Slices::of_gpu);

}  // namespace fsdp
