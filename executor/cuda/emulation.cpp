#include "executor/cuda/emulation.h"

#include <algorithm>
#include <cmath>

namespace fsdp::cuda {

ModelledCollective model_collective(const Demand& d, std::int64_t multiprocessors, double bytes_per_second) {
  const double share = std::max(d.use[static_cast<std::size_t>(Resource::compute)], d.resident);
  ModelledCollective p;
  p.blocks = static_cast<int>(std::clamp<std::int64_t>(std::llround(share * static_cast<double>(multiprocessors)), 1,
                                                       std::max<std::int64_t>(multiprocessors, 1)));
  p.nanoseconds = std::llround(d.alone.count() * 1e9);
  p.traffic_bytes =
      std::llround(d.use[static_cast<std::size_t>(Resource::memory)] * bytes_per_second * d.alone.count());
  return p;
}

std::int64_t chunk_begin(std::int64_t elements, std::int64_t members, std::int64_t member) {
  const std::int64_t chunk = (elements + members - 1) / members;
  return std::min(member * chunk, elements);
}

std::int64_t bytes_from_others(const host::CollectiveCall& p, std::int64_t member, std::int64_t members) {
  using host::CollectiveAction;
  const std::int64_t width = size_of(p.type);
  switch (p.action) {
    case CollectiveAction::all_gather: return (p.slot_begin(members) - p.slot(member)) * width;
    case CollectiveAction::reduce_scatter: return (members - 1) * p.slot(member) * width;
    case CollectiveAction::broadcast: return member == p.root ? 0 : p.elements * width;
    case CollectiveAction::all_reduce: {
      const std::int64_t mine = chunk_begin(p.elements, members, member + 1) - chunk_begin(p.elements, members, member);
      return ((members - 1) * mine + p.elements - mine) * width;
    }
  }
  return 0;
}

}  // namespace fsdp::cuda
