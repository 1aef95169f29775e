// One vector clock over the streams per operation, as in the race proof: how many operations of each stream have
// finished when it has.
#include "planner/program/stream_frees.h"

#include <algorithm>
#include <array>

namespace fsdp {
namespace {

using Clock = std::array<std::int32_t, kStreams>;

void join(Clock& into, const Clock& from) {
  for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], from[s]);
}

struct Waiting {
  std::int32_t buffer = 0;
  Clock until{};  // by stream: operations that must have finished
};

bool passed(const Waiting& block, const Clock& host) {
  for (std::size_t s = 0; s < host.size(); ++s)
    if (block.until[s] > host[s]) return false;
  return true;
}

}  // namespace

std::vector<BlockReturn> latest_returns(const Step& step, const Program& program) {
  std::vector<BlockReturn> returns;
  std::vector<Waiting> waiting;
  std::vector<Clock> clocks(step.ops.size());
  std::array<Clock, kStreams> streams{};
  Clock issued{}, host{};
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (op.allocs.count > 0)
      std::erase_if(waiting, [&](const Waiting& block) {
        if (!passed(block, host)) return false;
        returns.push_back({static_cast<std::int32_t>(i), block.buffer});
        return true;
      });
    const auto s = static_cast<std::size_t>(op.stream);
    if (op.action == Action::host_wait) {
      for (const std::int32_t w : step.waits_of(op))
        if (w >= 0) join(host, clocks[static_cast<std::size_t>(w)]);
    } else if (!op.host_only) {
      join(streams[s], host);
      for (const std::int32_t w : step.waits_of(op))  // negative: of the step before, which has ended
        if (w >= 0) join(streams[s], clocks[static_cast<std::size_t>(w)]);
      streams[s][s] = ++issued[s];
      clocks[i] = streams[s];
      if (op.action == Action::read_loss) join(host, streams[s]);
    }
    for (const std::int32_t b : step.frees_of(op)) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (buffer.recorded_streams == 0) continue;
      Waiting block{b, {}};
      for (std::size_t r = 0; r < block.until.size(); ++r)
        if (((buffer.recorded_streams >> r) & 1U) != 0) block.until[r] = issued[r];
      waiting.push_back(block);
    }
  }
  for (const Waiting& block : waiting) returns.push_back({static_cast<std::int32_t>(step.ops.size()), block.buffer});
  return returns;
}

bool frees_at_stream_time(const Program& program) {
  return std::any_of(program.buffers.begin(), program.buffers.end(),
                     [](const Buffer& b) { return b.recorded_streams != 0; });
}

}  // namespace fsdp
