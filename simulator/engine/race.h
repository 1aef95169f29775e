// The race proof: no plan is executed without it.
//
// Happens-before comes from stream order and waits alone; the issue order of communicators is not relied on. Checked
// over init, the first step and two steady steps:
//  - Two accesses to one buffer on different streams, at least one of them a write, are ordered.
//  - Every access of an allocation happens before the first operation of its pool's stream after the free, because the
//    allocator may hand out the block from then on. Exempt are streams that the block is marked for
//    (Buffer::recorded_streams): the allocator waits for what was issued on those before the free.
//  - Accesses lie between allocation and free in host order.
//  - The host has waited for what it reads or writes itself (offloaded shards).
//  - Buffers whose byte ranges overlap in the arena (when offsets are assigned) are never live together, and the
//    accesses of the earlier happen before those of the later. Marks do not help here, because nothing waits for them.
#pragma once

#include <string>
#include <vector>

#include "planner/program.h"

namespace fsdp {

struct Race {
  int step = 0;                           // 0 init, 1 first, 2 and 3 steady
  std::int32_t earlier = -1, later = -1;  // operation indices
  std::int32_t buffer = -1;
  std::string rule;  // which of them, in words
};

// Linear in the program for a fixed number of streams. Empty: proven.
[[nodiscard]] std::vector<Race> find_races(const Program&, std::size_t at_most = 8);

}  // namespace fsdp
