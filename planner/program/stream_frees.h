// Frees at stream time (Buffer::recorded_streams): when the host knows for certain that a freed block is back.
//
// A block that is marked for streams can be handed out again once those streams have passed the point of its free.
// Whoever holds memory looks when it next allocates, as PyTorch's allocator does. When the streams get there depends on
// time. Two moments do not: the free itself, which is the earliest, and the next allocation after the host has waited
// for the streams (Action::host_wait, Action::read_loss), which is the latest. At the end of a Step all is back.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/program.h"

namespace fsdp {

// Just before operation `op` allocates; the number of operations: at the end of the Step.
struct BlockReturn {
  std::int32_t op = 0, buffer = 0;
  friend bool operator==(const BlockReturn&, const BlockReturn&) = default;
};

// Of the buffers with recorded_streams that this Step frees, the latest moment at which each is back. Ascending in
// `op`.
[[nodiscard]] std::vector<BlockReturn> latest_returns(const Step&, const Program&);

// Does any buffer wait for streams?
[[nodiscard]] bool frees_at_stream_time(const Program&);

// As memory_events (planner/program.h) for every operation in order, with blocks that go back as late as they can:
// begin(operation), returned(buffer) of what waited until then, allocate(buffer) and release(buffer) of its own; last,
// begin(number of operations) and returned(buffer) of all that still waited.
template <class Begin, class Returned, class Allocate, class Release>
void latest_memory_events(const Step& step, const Program& program, const Begin& begin, const Returned& returned,
                          const Allocate& allocate, const Release& release) {
  const std::vector<BlockReturn> returns = latest_returns(step, program);
  std::size_t next = 0;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    begin(i);
    for (; next < returns.size() && static_cast<std::size_t>(returns[next].op) == i; ++next)
      returned(returns[next].buffer);
    memory_events(step, step.ops[i], allocate, [&](std::int32_t b) {
      if (program.buffers[static_cast<std::size_t>(b)].recorded_streams == 0) release(b);
    });
  }
  begin(step.ops.size());
  for (; next < returns.size(); ++next) returned(returns[next].buffer);
}

}  // namespace fsdp
