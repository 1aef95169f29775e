// Collectives of one step beside the work of the compute stream: the same sums for a prediction and for a trace.
//
//   finish(s);                                   // fills exposed seconds from spans
//   s.exposed[...], s.collectives[k].exposed
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/costs.h"
#include "planner/timeline.h"

namespace fsdp {

[[nodiscard]] std::string_view words(CollectiveKind);  // "all-gather"

struct Collective {
  CollectiveKind kind{};
  std::string object = {};  // describe()'s words; of a trace: empty
  std::int64_t bytes = -1;  // of the whole tensor, on all ranks of the group; -1: not said
  Span span = {};
  double exposed = 0;  // seconds in which the compute stream does nothing
};

// All kernels of one name; on processors operators that no other calls.
struct KernelTime {
  std::string name;
  std::int64_t count = 0;
  double seconds = 0;
};

struct TracedStep {
  bool on_gpu = true;                              // false: operators of PyTorch on processors, collectives of gloo
  double duration = 0;                             // the period of a step
  std::vector<Span> compute = {};                  // what runs on the compute stream
  std::vector<Collective> collectives = {};        // by start
  double busy = 0, idle = 0;                       // seconds of compute; of neither compute nor a collective
  std::array<double, kCollectiveKinds> exposed{};  // where several kinds run, the first counts
  std::vector<KernelTime> kernels = {};            // of a trace, without collectives; most seconds first
};

// Sorts, and fills what follows from the spans.
void finish(TracedStep&);

}  // namespace fsdp
