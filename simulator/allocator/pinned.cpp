#include "simulator/allocator/pinned.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "models/index.h"
#include "planner/layout/flat.h"
#include "simulator/allocator/replay.h"

namespace fsdp {
namespace {

std::int64_t rounded(std::int64_t bytes) {
  return bytes > 0 ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes))) : 0;
}

// On the rank: cuts of flat parameters differ.
std::int64_t taken(Buffer buffer, const Program& program, const ShardingPlan& plan, std::int64_t rank) {
  if (!buffer.host) return 0;
  const bool state = buffer.kind == BufferKind::optimizer_state;
  if (state && !plan.offload_optimizer) return buffer.bytes;  // the CPU's, not pinned
  std::int64_t bytes = 0;
  if (buffer.unit >= 0 && program.layouts[at(buffer.unit)].flat_elements > 0) {
    const UnitLayout& unit = program.layouts[at(buffer.unit)];
    if (!state || !unit.flat_aligned) return rounded(buffer.bytes);
    for (const ShardedParam& p : unit.params)  // the optimizer sees parameters as views
      if (p.trainable) bytes += rounded(flat_range(unit, p, rank % unit.shards).elements * size_of(buffer.dtype));
    return bytes;
  }
  if (buffer.kind == BufferKind::sharded_gradient)
    buffer.kind = BufferKind::optimizer_state;  // a tensor each, as these
  for (const std::int64_t tensor : tensors_of(buffer, program)) bytes += rounded(tensor);
  return bytes;
}

}  // namespace

std::int64_t pinned_peak(const Program& program, const ShardingPlan& plan, std::int64_t rank) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(program.buffers.size());
  for (const Buffer& buffer : program.buffers) bytes.push_back(taken(buffer, program, plan, rank));
  std::int64_t now = 0, peak = 0;
  for (const Step* step : {&program.init, &program.first_step, &program.steady_step})
    for (const Operation& op : step->ops)
      memory_events(
          *step, op, [&](std::int32_t b) { peak = std::max(peak, now += bytes[at(b)]); },
          [&](std::int32_t b) { now -= bytes[at(b)]; });
  return peak;
}

}  // namespace fsdp
