// The boxes that each rank writes into a checkpoint. Replicas hold the same boxes and share the work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "executor/checkpoint/box.h"
#include "executor/checkpoint/manifest.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

struct Piece {
  std::int32_t unit = -1, param = -1;
  StatePart part{};
  Box box;
  std::int64_t offset = 0, bytes = 0;  // in the buffer of RankState::view(unit, part)
};

// Throws InputError for plans whose state is partly outside of units (ignored), or in 8 bits.
void check_savable(const ShardingPlan&);

// Of this rank, in the order in which they lie in its file; what a flat shard (fsdp1) holds of a tensor may be several.
// Of the replicas of a shard, the one with the fewest bytes so far takes the next largest box (as DCP's deduplication);
// all ranks come to the same answer.
[[nodiscard]] std::vector<Piece> pieces_to_write(const ModelGraph&, const ShardingPlan&, const std::vector<UnitLayout>&,
                                                 std::int64_t rank);
// What the rank that writes most writes.
[[nodiscard]] std::int64_t most_bytes_of_a_rank(const ModelGraph&, const ShardingPlan&, const std::vector<UnitLayout>&);

}  // namespace fsdp
