// Allocated bytes through a steady step, split into parts that the caller chooses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/index.h"
#include "planner/program.h"

namespace fsdp {

using MemoryStack = std::vector<std::int64_t>;  // allocated bytes by part

// Buffers that live when a steady step begins: those that init and the first step allocate and do not free.
[[nodiscard]] inline std::vector<char> live_before(const Program& program) {
  std::vector<char> live(program.buffers.size(), 0);
  for (const Step* step : {&program.init, &program.first_step})
    for (const Operation& op : step->ops)
      memory_events(
          *step, op, [&](std::int32_t b) { live[at(b)] = 1; }, [&](std::int32_t b) { live[at(b)] = 0; });
  return live;
}

// part_of: by buffer, below `parts`. Calls begin(stack) before the first operation,
// see(2 i, stack) with the highest moment around operation i, and see(2 i + 1, stack) when its frees are done:
// `at` and `after` of MemoryPoint.
template <class Begin, class See>
void walk_memory(const Program& program, const std::vector<std::int64_t>& part_of, std::size_t parts,
                 const Begin& begin, const See& see) {
  const std::vector<char> live = live_before(program);
  MemoryStack now(parts, 0);
  std::int64_t total = 0;
  const auto change = [&](std::int32_t b, int sign) {
    const Buffer& buffer = program.buffers[at(b)];
    if (buffer.host) return;
    now[at(part_of[at(b)])] += sign * buffer.bytes;
    total += sign * buffer.bytes;
  };
  for (std::size_t b = 0; b < live.size(); ++b)
    if (live[b]) change(static_cast<std::int32_t>(b), 1);
  begin(now);
  for (std::size_t i = 0; i < program.steady_step.ops.size(); ++i) {
    MemoryStack highest = now;
    std::int64_t most = total;
    const auto allocate = [&](std::int32_t b) {
      change(b, 1);
      if (total <= most) return;
      most = total;
      highest = now;
    };
    memory_events(program.steady_step, program.steady_step.ops[i], allocate, [&](std::int32_t b) { change(b, -1); });
    see(2 * i, highest);
    see(2 * i + 1, now);
  }
}

}  // namespace fsdp
