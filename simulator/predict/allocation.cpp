#include "simulator/predict/allocation.h"

#include <map>

#include "models/index.h"
#include "planner/program/stream_frees.h"
#include "simulator/engine/engine.h"

namespace fsdp {
namespace {

AllocatorHistory arena_history(const Program& program, std::int64_t bytes) {
  using What = AllocatorRecord::What;
  AllocatorHistory history;
  AllocatorPlace place;
  history.records.push_back({.what = What::segment_taken, .bytes = bytes, .place = place});
  std::map<std::int64_t, std::int64_t> live;  // address -> bytes
  const auto note = [&](What what, std::int32_t b) {
    const Buffer& buffer = program.buffers[at(b)];
    if (buffer.host || buffer.bytes == 0) return;
    history.records.push_back({what, buffer.offset, buffer.bytes, static_cast<int>(buffer.pool), b, place});
    if (what == What::allocated) live[buffer.offset] = buffer.bytes;
    if (what == What::freed) live.erase(buffer.offset);
  };
  const Step* const steps[] = {&program.init, &program.first_step, &program.steady_step};
  for (int s = 0; s < 3; ++s) {
    const std::vector<BlockReturn> returns = latest_returns(*steps[s], program);
    auto next = returns.begin();
    for (std::size_t i = 0; i < steps[s]->ops.size(); ++i) {
      place = {s, static_cast<std::int32_t>(i)};
      for (; next != returns.end() && at(next->op) == i; ++next) note(What::freed, next->buffer);
      memory_events(
          *steps[s], steps[s]->ops[i], [&](std::int32_t b) { note(What::allocated, b); },
          [&](std::int32_t b) {
            note(What::released, b);
            if (program.buffers[at(b)].recorded_streams == 0) note(What::freed, b);
          });
    }
    for (; next != returns.end(); ++next) note(What::freed, next->buffer);
  }
  std::int64_t end = 0;
  const auto add = [&](std::int64_t to, BlockState state) {
    if (to > end)
      history.blocks.push_back(
          {.address = end, .bytes = to - end, .requested = to - end, .state = state, .first = end == 0});
    end = std::max(end, to);
  };
  for (const auto& [address, size] : live) {
    add(address, BlockState::free);
    add(address + size, BlockState::allocated);
  }
  add(bytes, BlockState::free);
  return history;
}

}  // namespace

CachedAllocation::CachedAllocation(const Program& p, const CostContext& c, const Timeline& steady)
    : program_(p), steady_(steady), cublas_(cublas_workspaces(c.cluster.gpu)) {
  if (frees_at_stream_time(p)) first_ = simulate(p.first_step, demands_of(p.first_step, p, c), {.steps = 1});
}

AllocatorPrediction CachedAllocation::with(std::int64_t capacity, bool expandable, AllocatorHistory* history) const {
  ReplayOptions replayed = options(capacity, expandable);
  replayed.history = history;
  return replay_allocator(program_, replayed);
}

ReplayOptions CachedAllocation::options(std::int64_t capacity, bool expandable) const {
  ReplayOptions options;
  options.fixed = cublas_;
  options.settings.capacity = capacity;
  options.settings.expandable_segments = expandable;
  options.first_step = &first_;
  options.steady_step = &steady_;
  return options;
}

std::optional<std::int64_t> arena_of(const Program& program, const CostContext& c) {
  if (!c.cluster.host && c.implementation.memory != MemorySource::arena) return std::nullopt;
  if (frees_at_stream_time(program) && c.implementation.memory != MemorySource::arena) return std::nullopt;
  if (program.arena_bytes > 0) return program.arena_bytes;
  Program planned = program;
  assign_arena(planned);
  return planned.arena_bytes;
}

AllocatorHistory allocation_history(const Program& program, const CostContext& c, const Timeline& steady) {
  if (arena_of(program, c)) {
    Program planned = program;
    if (planned.arena_bytes == 0) assign_arena(planned);
    return arena_history(planned, planned.arena_bytes);
  }
  AllocatorHistory history;
  (void)CachedAllocation(program, c, steady)
      .with(kNoLimit, c.implementation.memory == MemorySource::caching_expandable, &history);
  return history;
}

}  // namespace fsdp
