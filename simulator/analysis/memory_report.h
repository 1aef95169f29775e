// What memory is made of, in the words of somebody who has to make it smaller: when each peak is, and which buffers
// stand there.
//
//   MemoryReport r = memory_report(program, plan, model);
//   r.moments[k].bytes[part]                  // allocated bytes of one part at the peak of one phase
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "simulator/analysis/known_differences.h"

namespace fsdp {

enum class MemoryPart : std::uint8_t {
  parameter_shards,
  optimizer_states,
  sharded_gradients,    // live from step to step
  gathered_parameters,  // unsharded parameters, and shards kept over a small group
  gather_buffers,       // all-gather outputs, shards cast for them
  gradients,            // unsharded, with no-sync accumulators
  reduce_buffers,       // reduce-scatter inputs and outputs
  activations,          // saved for backward or on their way to the next op, but for those of the loss
  activation_gradients,
  logits_and_loss,  // logits, their gradients, what the loss saves and its temporaries
  temporaries,      // alive inside one kernel
  other,            // the batch, scalars, workspaces
};
inline constexpr int kMemoryParts = 12;
[[nodiscard]] std::string_view name(MemoryPart);

// By buffer of the program: the part that it is counted as.
[[nodiscard]] std::vector<MemoryPart> parts_of_buffers(const Program&, const ModelGraph&);

// One phase of the program at the moment of its peak.
struct MemoryMoment {
  std::string phase;  // "init", "first step: forward", "forward", "backward", "optimizer" (of a steady step)
  std::string at;     // describe() of the operation that stands at the peak
  std::int64_t total = 0;
  std::array<std::int64_t, kMemoryParts> bytes{};
};

// Buffers of one sort that are live at the peak of the program.
struct MemoryItem {
  std::string what;                   // "forward linear: activation", "unsharded parameters of root"
  std::int64_t count = 0, bytes = 0;  // bytes: of all of them
};

struct MemoryReport {
  std::vector<MemoryMoment> moments;  // in order of time; phases without operations are left out
  std::size_t peak = 0;               // the highest of them
  std::vector<MemoryItem> items;      // at that peak, largest first
  std::int64_t host_peak = 0;         // pinned host memory
  std::vector<KnownDifference> differences;
};

[[nodiscard]] MemoryReport memory_report(const Program&, const ShardingPlan&, const ModelGraph&);

[[nodiscard]] std::string to_json_text(const MemoryReport&);  // "fsdp-plan/memory/1"

}  // namespace fsdp
