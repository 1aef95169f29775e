// Emulated world: one rank of many computes, and its collectives are modelled. A kernel holds as many multiprocessors
// and moves as many bytes of device memory as the costs say, for as long as they say. Proves overlap and memory, never
// communication time.
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

// Bytes that one rank takes from others in a collective, as the instruments of all backends count them (see
// host::Group::run): the slots of the others for all-gather and reduce-scatter, those of both over near-equal chunks
// for all-reduce, everything for broadcast except on the root.
[[nodiscard]] std::int64_t bytes_from_others(const host::CollectiveCall&, std::int64_t member, std::int64_t members);

// All-reduce works on near-equal chunks of consecutive elements, one per member: where that of `member` begins.
[[nodiscard]] std::int64_t chunk_begin(std::int64_t elements, std::int64_t members, std::int64_t member);

}  // namespace fsdp::cuda
