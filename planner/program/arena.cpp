// Offsets for every buffer of a program: one region per pool, best fit within it, in host order.
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "planner/program.h"
#include "planner/program/stream_frees.h"

namespace fsdp {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t rounded(std::int64_t bytes) {
  return (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

// Best-fit free list over a region that grows at its end.
class Region {
 public:
  std::int64_t take(std::int64_t size) {
    const auto fit = by_size_.lower_bound({size, 0});
    if (fit == by_size_.end()) return grow(size);
    const auto [block, offset] = *fit;
    by_size_.erase(fit);
    by_offset_.erase(offset);
    if (block > size) insert(offset + size, block - size);
    return offset;
  }

  void give(std::int64_t offset, std::int64_t size) {
    auto next = by_offset_.lower_bound(offset);
    if (next != by_offset_.end() && next->first == offset + size) {
      size += next->second;
      next = erase(next);
    }
    if (next != by_offset_.begin()) {
      auto previous = std::prev(next);
      if (previous->first + previous->second == offset) {
        offset = previous->first;
        size += previous->second;
        erase(previous);
      }
    }
    insert(offset, size);
  }

  [[nodiscard]] std::int64_t size() const { return end_; }

 private:
  using ByOffset = std::map<std::int64_t, std::int64_t>;

  std::int64_t grow(std::int64_t size) {
    if (!by_offset_.empty()) {  // the last free block may reach the end: extend it
      auto last = std::prev(by_offset_.end());
      if (last->first + last->second == end_) {
        const std::int64_t offset = last->first;
        erase(last);
        end_ = offset + size;
        return offset;
      }
    }
    const std::int64_t offset = end_;
    end_ += size;
    return offset;
  }

  void insert(std::int64_t offset, std::int64_t size) {
    by_offset_.emplace(offset, size);
    by_size_.emplace(size, offset);
  }

  ByOffset::iterator erase(ByOffset::iterator it) {
    by_size_.erase({it->second, it->first});
    return by_offset_.erase(it);
  }

  ByOffset by_offset_;
  std::set<std::pair<std::int64_t, std::int64_t>> by_size_;
  std::int64_t end_ = 0;
};

// Buffers that are live when a steady step ends live in every step to come: their bytes are never given to another.
std::vector<char> persistent(const Program& program) {
  std::vector<char> live(program.buffers.size(), 0);
  for (const Step* step : {&program.init, &program.first_step, &program.steady_step}) {
    for (const Operation& op : step->ops) {
      memory_events(
          *step, op, [&](std::int32_t b) { live[static_cast<std::size_t>(b)] = 1; },
          [&](std::int32_t b) { live[static_cast<std::size_t>(b)] = 0; });
    }
  }
  return live;
}

}  // namespace

void assign_arena(Program& program) {
  std::array<Region, kStreams> pools;
  Region host;
  const std::vector<char> forever = persistent(program);
  const auto region = [&](const Buffer& b) -> Region& {
    return b.host ? host : pools[static_cast<std::size_t>(b.pool)];
  };
  for (Buffer& b : program.buffers) b.offset = -1;
  for (const Step* step : {&program.init, &program.first_step, &program.steady_step}) {
    const auto give = [&](std::int32_t id) {
      const Buffer& b = program.buffers[static_cast<std::size_t>(id)];
      if (!forever[static_cast<std::size_t>(id)]) region(b).give(b.offset, rounded(b.bytes));
    };
    // Our executor runs an operation as one kernel: what an operation frees is free after it.
    std::vector<std::int32_t> freed;
    const auto give_freed = [&] {
      for (const std::int32_t id : freed) give(id);
      freed.clear();
    };
    latest_memory_events(
        *step, program, [&](std::size_t) { give_freed(); }, give,
        [&](std::int32_t id) {
          Buffer& b = program.buffers[static_cast<std::size_t>(id)];
          if (b.offset < 0) b.offset = region(b).take(rounded(b.bytes));
        },
        [&](std::int32_t id) { freed.push_back(id); });
  }
  std::array<std::int64_t, kStreams> base{};
  std::int64_t total = 0;
  for (std::size_t p = 0; p < pools.size(); ++p) {
    base[p] = total;
    total += pools[p].size();
  }
  for (Buffer& b : program.buffers)
    if (b.offset >= 0 && !b.host) b.offset += base[static_cast<std::size_t>(b.pool)];
  program.arena_bytes = total;
  program.host_arena_bytes = host.size();
}

}  // namespace fsdp
