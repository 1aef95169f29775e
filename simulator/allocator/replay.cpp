#include "simulator/allocator/replay.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "models/input/error.h"
#include "planner/layout/flat.h"
#include "planner/layout/optimizer_state.h"

namespace fsdp {

namespace {

// Empty: the state is not one of 8 bits, whose tensors take fewer bytes than dense ones.
std::vector<std::int64_t> eight_bit_tensors(const Buffer& buffer, const UnitLayout& unit, std::int64_t shard) {
  if (buffer.bytes == state_bytes(OptimizerKind::adamw, unit, shard, buffer.dtype) ||
      buffer.bytes != state_bytes(OptimizerKind::adamw_8bit, unit, shard, buffer.dtype))
    return {};
  std::vector<std::int64_t> tensors;
  for (const std::int64_t elements : optimizer_elements(unit, shard))
    for (const std::int64_t bytes : state_tensors(OptimizerKind::adamw_8bit, elements, buffer.dtype))
      tensors.push_back(bytes);
  return tensors;
}

}  // namespace

std::vector<std::int64_t> tensors_of(const Buffer& buffer, const Program& program) {
  const bool state = buffer.kind == BufferKind::optimizer_state;
  if ((!state && buffer.kind != BufferKind::parameter_shard) || buffer.unit < 0) return {buffer.bytes};
  const UnitLayout& unit = program.layouts[static_cast<std::size_t>(buffer.unit)];
  const bool flat =
      unit.flat_elements > 0;  // one tensor; with use_orig_params the optimizer sees the parameters as views into it
  if (flat && !(state && unit.flat_aligned)) return {buffer.bytes};
  const std::int64_t shard = program.rank % unit.shards, element = size_of(buffer.dtype);
  if (state && !flat)
    if (std::vector<std::int64_t> eight_bit = eight_bit_tensors(buffer, unit, shard); !eight_bit.empty())
      return eight_bit;
  std::vector<std::int64_t> tensors;
  std::int64_t sum = 0;
  for (const ShardedParam& p : unit.params) {
    if (state && !p.trainable) continue;
    const std::int64_t own = flat ? flat_range(unit, p, shard).elements : p.local_elements(shard);
    tensors.push_back((state ? own : p.padded_shard()) * element);
    sum += tensors.back();
  }
  return sum == buffer.bytes ? tensors
                             : std::vector<std::int64_t>{buffer.bytes};  // of another shape than the unit: as it is
}

namespace {

using Handle = CachingAllocator::Handle;
constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr Handle kDead = -2, kNoBytes = -3, kOffDevice = -4;  // beside CachingAllocator's own handles

struct Tensors {  // of a buffer that is more than one tensor
  std::vector<std::int64_t> bytes;
  std::vector<Handle> handles;
};

// What decides a step: where every block is and whose it is, and what still waits.
struct State {
  std::vector<BlockView> blocks;
  std::vector<CachingAllocator::Pending> pending;
  std::vector<std::int64_t> addresses;  // of live buffers, by buffer
  friend bool operator==(const State&, const State&) = default;
};

class Replay {
 public:
  Replay(const Program& program, const ReplayOptions& options)
      : program_(program),
        options_(options),
        allocator_(options.settings),
        handles_(program.buffers.size(), kDead),
        split_(program.buffers.size(), -1) {
    for (std::size_t b = 0; b < program.buffers.size(); ++b) {
      if (program.buffers[b].kind != BufferKind::parameter_shard &&
          program.buffers[b].kind != BufferKind::optimizer_state)
        continue;
      std::vector<std::int64_t> tensors = tensors_of(program.buffers[b], program);
      if (tensors.size() == 1) continue;
      split_[b] = static_cast<std::int32_t>(several_.size());
      several_.push_back({std::move(tensors), {}});
    }
  }

  AllocatorPrediction run() {
    const bool fits = fixed() && step(program_.init, nullptr, 0) && step(program_.first_step, options_.first_step, 1);
    // Garbage collection counts how long blocks have been free: no step begins as the one before.
    // Nor do times that vary from step to step.
    const bool can_repeat = options_.settings.garbage_collection_threshold <= 0 && options_.steady_times.empty();
    State before = fits && can_repeat ? state() : State{};
    for (int k = 0; fits && k < options_.steady_steps; ++k) {
      const std::int64_t retries = allocator_.stats().retries;
      if (!step(program_.steady_step, times_of(k), 2 + k)) break;
      ++result_.steady_steps_replayed;
      result_.retries_per_step = allocator_.stats().retries - retries;
      result_.retries_of_steps.push_back(result_.retries_per_step);
      if (!can_repeat || k + 1 == options_.steady_steps) continue;
      State after = state();
      if (after == before) {
        result_.retries += result_.retries_per_step * (options_.steady_steps - k - 1);
        break;
      }
      before = std::move(after);
    }
    const AllocatorStats& s = allocator_.stats();
    result_.peak_allocated = s.allocated.peak;
    result_.peak_requested = s.requested.peak;
    result_.peak_active = s.active.peak;
    result_.peak_reserved = s.reserved.peak;
    result_.retries += s.retries;
    result_.segments = s.segments;
    if (options_.history != nullptr) {
      options_.history->blocks = allocator_.blocks();
      options_.history->expandable = options_.settings.expandable_segments;
    }
    return result_;
  }

 private:
  [[noreturn]] void broken(std::int32_t buffer, const char* what) const {
    throw InternalError("broken program: operation " + std::to_string(place_.op.value_or(-1)) + " " + what +
                        " buffer " + std::to_string(buffer));
  }

  [[nodiscard]] const Timeline* times_of(int k) const {
    const auto times = options_.steady_times;
    return times.empty() ? options_.steady_step : &times[static_cast<std::size_t>(k) % times.size()];
  }

  bool fixed() {
    for (const FixedAllocation& f : options_.fixed)
      if (f.bytes > 0 && take(f.bytes, f.stream, -1) == CachingAllocator::kNone) return false;
    return true;
  }

  Handle take(std::int64_t bytes, Stream pool, std::int32_t buffer) {
    if (bytes == 0) return kNoBytes;
    const Handle h = allocator_.malloc(bytes, static_cast<int>(pool), now_);
    if (options_.history != nullptr) note_malloc(h, bytes, static_cast<int>(pool), buffer);
    const AllocatorStats& s = allocator_.stats();
    if (h == CachingAllocator::kNone) {
      result_.out_of_memory = true;
      result_.failed = place_;
      result_.failure = allocator_.out_of_memory();
    } else if (s.reserved.peak > reserved_) {
      reserved_ = s.reserved.peak;
      result_.at = place_;
      result_.allocated = s.allocated.current;
      result_.active = s.active.current;
      result_.inactive_split = s.inactive_split.current;
    }
    return h;
  }

  bool allocate(std::int32_t id) {
    const auto b = static_cast<std::size_t>(id);
    const Buffer& buffer = program_.buffers[b];
    if (handles_[b] != kDead) broken(id, "allocates the live");
    if (buffer.host) {
      handles_[b] = kOffDevice;
      return true;
    }
    if (split_[b] < 0) return (handles_[b] = take(buffer.bytes, buffer.pool, id)) != CachingAllocator::kNone;
    Tensors& tensors = several_[static_cast<std::size_t>(split_[b])];
    handles_[b] = kNoBytes;
    tensors.handles.clear();
    for (const std::int64_t bytes : tensors.bytes) {
      tensors.handles.push_back(take(bytes, buffer.pool, id));
      if (tensors.handles.back() == CachingAllocator::kNone) return false;
    }
    return true;
  }

  // --- the history

  void note(AllocatorRecord::What what, const AllocatorRecord& block) {
    options_.history->records.push_back(block);
    options_.history->records.back().what = what;
    options_.history->records.back().place = place_;
  }
  // What a malloc did before it took its block: it looked which freed blocks no stream uses any more, and changed
  // segments.
  void note_malloc(Handle h, std::int64_t bytes, int stream, std::int32_t buffer) {
    using What = AllocatorRecord::What;
    if (!waiting_.empty()) {
      std::set<std::int64_t> pending;
      for (const CachingAllocator::Pending& p : allocator_.pending()) pending.insert(p.address);
      std::erase_if(waiting_, [&](const AllocatorRecord& block) {
        if (pending.contains(block.address)) return false;
        note(What::freed, block);
        return true;
      });
    }
    for (; changes_ < allocator_.changes().size(); ++changes_) {
      const SegmentChange& c = allocator_.changes()[changes_];
      if (c.bytes > 0) stream_of_segment_[c.address] = stream;
      note(c.bytes > 0 ? What::segment_taken : What::segment_given_back,
           {.address = c.address, .bytes = std::abs(c.bytes), .stream = stream_of_segment_[c.address]});
    }
    if (h == CachingAllocator::kNone) return;
    const AllocatorRecord block{.address = allocator_.address(h), .bytes = bytes, .stream = stream, .buffer = buffer};
    note(What::allocated, block);
    live_[h] = block;
  }
  void note_free(Handle h, bool waits) {
    const auto block = live_.extract(h).mapped();
    note(AllocatorRecord::What::released, block);
    if (waits) waiting_.push_back(block);
    else note(AllocatorRecord::What::freed, block);
  }

  static_assert(2 * kStreams <= CachingAllocator::kMaxStreams);
  void give_back(Handle h, Stream pool, unsigned recorded) {
    if (h < 0) return;
    if (options_.history != nullptr) note_free(h, recorded != 0);
    // The bit of the pool's own stream is NCCL's stream beside it, which the allocator knows as another one.
    for (int s = 0; recorded >> s != 0; ++s)
      if ((recorded >> s & 1u) != 0) allocator_.record_stream(h, s == static_cast<int>(pool) ? kStreams + s : s);
    allocator_.free(h, ends_);
  }

  void release(std::int32_t id) {
    const auto b = static_cast<std::size_t>(id);
    const unsigned recorded = program_.buffers[b].recorded_streams;
    const Stream pool = program_.buffers[b].pool;
    if (handles_[b] == kDead) broken(id, "frees the dead");
    if (split_[b] < 0) {
      give_back(handles_[b], pool, recorded);
    } else {
      for (const Handle h : several_[static_cast<std::size_t>(split_[b])].handles) give_back(h, pool, recorded);
    }
    handles_[b] = kDead;
  }

  // false: out of memory.
  bool step(const Step& step, const Timeline* times, int number) {
    const bool timed =
        times != nullptr && times->issued.size() == step.ops.size() && times->spans.size() == step.ops.size();
    if (!timed) {
      now_ = 0;
      ends_.fill(kNever);
    } else if (ends_[0] == kNever) {
      ends_.fill(-kNever);  // the step before had no times: what it issued has ended
    }
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      const Operation& op = step.ops[i];
      place_ = {number, static_cast<std::int32_t>(i)};
      if (timed) now_ = times->issued[i];
      bool fits = true;
      for (const std::int32_t b : step.allocs_of(op)) fits = fits && allocate(b);
      for (const std::int32_t b : step.inner_of(op)) {
        if (!fits) break;
        if (b >= 0) fits = allocate(b);
        else release(~b);
      }
      if (!fits) return false;
      if (timed && !op.host_only) {
        const auto s = static_cast<std::size_t>(op.stream);
        ends_[s] = ends_[kStreams + s] = times->spans[i].end;
      }
      for (const std::int32_t b : step.frees_of(op)) release(b);
    }
    if (timed) {
      allocator_.move_origin(times->duration);
      for (double& end : ends_) end -= times->duration;
    } else {
      allocator_.finish_all();
    }
    return true;
  }

  [[nodiscard]] State state() const {
    State s{allocator_.blocks(), allocator_.pending(), {}};
    for (std::size_t b = 0; b < handles_.size(); ++b) {
      if (handles_[b] == kDead) continue;
      s.addresses.push_back(static_cast<std::int64_t>(b));
      if (handles_[b] >= 0) s.addresses.push_back(allocator_.address(handles_[b]));
      if (split_[b] < 0) continue;
      for (const Handle h : several_[static_cast<std::size_t>(split_[b])].handles)
        if (h >= 0) s.addresses.push_back(allocator_.address(h));
    }
    return s;
  }

  const Program& program_;
  const ReplayOptions& options_;
  CachingAllocator allocator_;
  std::vector<Handle> handles_;      // by buffer
  std::vector<std::int32_t> split_;  // by buffer: index into several_, -1: one tensor
  std::vector<Tensors> several_;
  std::array<double, 2 * kStreams> ends_{};  // of the last operation issued on each stream; NCCL's beside it
  double now_ = 0;
  AllocatorPlace place_;
  std::int64_t reserved_ = 0;
  std::map<Handle, AllocatorRecord> live_;  // these four: of the history
  std::vector<AllocatorRecord> waiting_;
  std::map<std::int64_t, int> stream_of_segment_;
  std::size_t changes_ = 0;
  AllocatorPrediction result_;
};

}  // namespace

std::array<FixedAllocation, 2> cublas_workspaces(const GpuSpec& gpu) {
  const bool old = gpu.compute_capability < 90 && !gpu.name.starts_with("mi");  // AMD's: hipBLAS gets the larger one
  const std::int64_t bytes = old ? (std::int64_t{8} << 20) + (std::int64_t{128} << 10) : std::int64_t{32} << 20;
  return {{{bytes, Stream::compute}, {bytes, Stream::compute}}};
}

AllocatorPrediction replay_allocator(const Program& program, const ReplayOptions& options) {
  return Replay(program, options).run();
}

}  // namespace fsdp
