// The tape of a model that PyTorch ran: what its trace says appears and goes, in the trace's order.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/tape/tape.h"

namespace fsdp {

// As make_tape. Throws InputError for what the trace does not have: other lengths, types, losses in parts.
[[nodiscard]] Tape traced_tape(const ModelGraph&, const Implementation&, const Workload&,
                               const std::vector<std::int32_t>& checkpointed, CheckpointPolicy);

}  // namespace fsdp
