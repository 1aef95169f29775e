// Memory is the schedule, replayed: allocated bytes around every operation, and what the peak is made of.
#pragma once

#include <vector>

#include "planner/program.h"
#include "planner/timeline.h"
#include "simulator/records/program_memory.h"

namespace fsdp {

// Replays one step. `live` holds a byte per buffer of the program (1: allocated before the step) and is updated.
// Throws InternalError when the step allocates what is live or frees what is not (a broken lowering).
[[nodiscard]] MemoryTimeline replay_memory(const Step&, const Program&, std::vector<char>& live);

// Frees take effect at their place in host order, which is what PyTorch counts as allocated. A block with
// recorded_streams is taken for longer, until those streams have passed (PyTorch's "active"): a device needs more than
// this where the host runs ahead of them. Init, first step and one steady step; throws InternalError if the steady step
// does not end with the buffers that it began with.
[[nodiscard]] ProgramMemory replay_memory(const Program&);

// The same with every block that waits for streams held as long as it can be.
[[nodiscard]] HeldMemory replay_latest(const Program&);

}  // namespace fsdp
