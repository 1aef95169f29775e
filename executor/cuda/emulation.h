// --emulate-world: one rank of many computes, its collectives are played: so many blocks of threads hold their
// multiprocessors and move so many bytes of device memory, for as long as the costs say. Proves overlap and memory,
// never communication time.
#pragma once

#include <cstdint>

#include "executor/ranks/group.h"
#include "models/cluster.h"
#include "planner/costs.h"

namespace fsdp::cuda {

struct ModelledCollective {
  int blocks = 1;  // one per multiprocessor that the collective's demand holds, at least one
  std::int64_t nanoseconds = 0;
  std::int64_t traffic_bytes = 0;  // of device memory, read and written
  friend bool operator==(const ModelledCollective&, const ModelledCollective&) = default;
};

// `multiprocessors` and `bytes_per_second`: of the GPU that the demand is of.
[[nodiscard]] ModelledCollective model_collective(const Demand&, std::int64_t multiprocessors, double bytes_per_second);

// What one rank's part of a collective takes from others, as the instruments of all backends count it (see
// host::Group::run): all-gather and reduce-scatter the slots of the others, all-reduce those of both over near-equal
// chunks, broadcast all but on the root.
[[nodiscard]] std::int64_t bytes_from_others(const host::CollectiveCall&, std::int64_t member, std::int64_t members);

// All-reduce works on near-equal chunks of consecutive elements, one per member: where that of `member` begins.
[[nodiscard]] std::int64_t chunk_begin(std::int64_t elements, std::int64_t members, std::int64_t member);

}  // namespace fsdp::cuda
