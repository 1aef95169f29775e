// The data path of the host collectives: every rank works on its own share, reading the others' posted buffers
// directly.
#include <algorithm>
#include <array>
#include <cstring>

#include "executor/ranks/group.h"
#include "executor/ranks/reduce.h"

namespace fsdp::host {
namespace {

// output[0, count) = reduction over the ranks of their input[first, first + count).
void reduce(const ThreadGroup& group, const CollectiveCall& p, std::int64_t first, std::int64_t count,
            std::byte* output) {
  std::array<const std::byte*, kMostThreads> inputs{};
  const auto n = static_cast<std::size_t>(group.size());
  for (std::size_t m = 0; m < n; ++m)
    inputs[m] = group.call(static_cast<std::int64_t>(m)).input + first * size_of(p.type);
  reduce_in_order(p.type, p.reduction, {inputs.data(), n}, count, output);
}

void copy_bytes(std::byte* to, const std::byte* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// Starts with the next rank, so that not all read the same one at once.
std::int64_t all_gather(ThreadGroup& group, const RunControl& control, std::int64_t me, const CollectiveCall& p) {
  group.meet(control, me, p);
  const std::int64_t width = size_of(p.type);
  std::int64_t moved = 0;
  for (std::int64_t i = 1; i < group.size(); ++i) {
    const std::int64_t other = (me + i) % group.size(), at = p.slot_begin(other) * width, bytes = p.slot(other) * width;
    copy_bytes(p.output + at, group.call(other).input + at, bytes);
    moved += bytes;
  }
  group.meet(control, me);
  return moved;
}

std::int64_t reduce_scatter(ThreadGroup& group, const RunControl& control, std::int64_t me, const CollectiveCall& p) {
  group.meet(control, me, p);
  reduce(group, p, p.slot_begin(me), p.slot(me), p.output);
  group.meet(control, me);
  return (group.size() - 1) * p.slot(me) * size_of(p.type);
}

std::int64_t broadcast(ThreadGroup& group, const RunControl& control, std::int64_t me, const CollectiveCall& p) {
  group.meet(control, me, p);
  const std::int64_t bytes = p.elements * size_of(p.type);
  if (me != p.root) copy_bytes(p.output, group.call(p.root).input, bytes);
  group.meet(control, me);
  return me == p.root ? 0 : bytes;
}

// Reduce-scatter in place over near-equal chunks, then all-gather of them.
std::int64_t all_reduce(ThreadGroup& group, const RunControl& control, std::int64_t me, const CollectiveCall& p) {
  const std::int64_t chunk = (p.elements + group.size() - 1) / group.size(), width = size_of(p.type);
  const auto begin = [&](std::int64_t m) { return std::min(m * chunk, p.elements); };
  group.meet(control, me, p);
  const std::int64_t mine = begin(me + 1) - begin(me);
  reduce(group, p, begin(me), mine, p.output + begin(me) * width);
  group.meet(control, me);
  for (std::int64_t i = 1; i < group.size(); ++i) {
    const std::int64_t other = (me + i) % group.size(), at = begin(other) * width;
    copy_bytes(p.output + at, group.call(other).output + at, begin(other + 1) * width - at);
  }
  group.meet(control, me);
  return ((group.size() - 1) * mine + p.elements - mine) * width;
}

}  // namespace

std::int64_t ThreadGroup::run(const RunControl& control, std::int64_t member, const CollectiveCall& p) {
  switch (p.action) {
    case CollectiveAction::all_gather: return all_gather(*this, control, member, p);
    case CollectiveAction::reduce_scatter: return reduce_scatter(*this, control, member, p);
    case CollectiveAction::all_reduce: return all_reduce(*this, control, member, p);
    case CollectiveAction::broadcast: return broadcast(*this, control, member, p);
  }
  return 0;
}

}  // namespace fsdp::host
