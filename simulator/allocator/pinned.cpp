#include "simulator/allocator/pinned.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "models/index.h"
#include "simulator/allocator/replay.h"

namespace fsdp {
namespace {

std::int64_t taken(Buffer buffer, const Program& program, const ShardingPlan& plan) {
  if (!buffer.host) return 0;
  const bool pinned = buffer.kind != BufferKind::optimizer_state || plan.offload_optimizer;
  if (!pinned) return buffer.bytes;
  if (buffer.kind == BufferKind::sharded_gradient)
    buffer.kind = BufferKind::optimizer_state;  // a tensor each, as these
  std::int64_t bytes = 0;
  for (const std::int64_t tensor : tensors_of(buffer, program))
    if (tensor > 0) bytes += static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tensor)));
  return bytes;
}

}  // namespace

std::int64_t pinned_peak(const Program& program, const ShardingPlan& plan) {
  std::vector<std::int64_t> bytes;
  bytes.reserve(program.buffers.size());
  for (const Buffer& buffer : program.buffers) bytes.push_back(taken(buffer, program, plan));
  std::int64_t now = 0, peak = 0;
  for (const Step* step : {&program.init, &program.first_step, &program.steady_step})
    for (const Operation& op : step->ops)
      memory_events(
          *step, op, [&](std::int32_t b) { peak = std::max(peak, now += bytes[at(b)]); },
          [&](std::int32_t b) { now -= bytes[at(b)]; });
  return peak;
}

}  // namespace fsdp
