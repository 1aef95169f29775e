// Memory is the schedule, replayed: allocated bytes around every operation, and what the peak is made of.
#pragma once

#include <array>
#include <cstdint>

#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// Replays one step. `live` holds a byte per buffer of the program (1: allocated before the step) and is updated.
// Throws MachineError when the step allocates what is live or frees what is not (a broken lowering).
[[nodiscard]] MemoryTimeline replay_memory(const Step&, const Program&, std::vector<char>& live);

struct ProgramMemory {
  MemoryTimeline init, first_step, steady_step;
  std::int64_t peak = 0;                             // over all of them, on the device
  std::int64_t host_peak = 0;                        // pinned host memory (offload)
  std::array<std::int64_t, kBufferKinds> at_peak{};  // what it is made of, by BufferKind
  int peak_step = 0;                                 // 0 init, 1 first, 2 steady
  std::int32_t peak_op = -1;                         // index of the operation in that step
};

// Frees take effect at their place in host order, which is what PyTorch counts as allocated. A block with
// recorded_streams is taken for longer, until those streams have passed (PyTorch's "active"): a device needs more than
// this where the host runs ahead of them. Init, first step, and two steady steps; throws MachineError if a steady step
// does not end where it began.
[[nodiscard]] ProgramMemory replay_memory(const Program&);

}  // namespace fsdp
