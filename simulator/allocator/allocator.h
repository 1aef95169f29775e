// PyTorch's CUDA caching allocator as arithmetic on addresses: which block a request gets, when a segment is taken from
// the device, what stays reserved. No memory is touched. The same decisions can therefore be replayed for a device that
// does not exist, or be backed with real memory by a caller that follows `changes()`.
//
//   CachingAllocator a({.capacity = 70 * kGiB});
//   const auto block = a.malloc(12'000'000, stream, now);     // CachingAllocator::kNone: out of memory,
//                                                             a.out_of_memory() says how
//   a.record_stream(block, other);                            // also used on `other`
//   a.free(block, done);                                      // done[s]: when everything issued on stream s so far
//                                                             will have ended
//
// The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.15). tests/torch/record_allocator.py checks them
// against that library.
// - Rounding: a request is rounded up to 512 bytes (or to one of d steps between powers of two). Requests up to 1 MiB
//   are small, all others large. Each stream has a small and a large pool of its own, and a block only serves its
//   stream.
// - Best fit: a request takes the smallest free block that is large enough, at the lowest address among equals. The
//   rest of the block is split off if it has 512 bytes (small pool, expandable) or more than 1 MiB (large pool);
//   otherwise the request gets the whole block.
// - No free block: a new segment of 2 MiB (small), 20 MiB (below 10 MiB), or the size rounded up to 2 MiB. Expandable
//   segments use one address range per pool instead, whose pages (2 MiB small, 20 MiB large) are mapped at the lowest
//   address where the request fits.
// - Free: a freed block merges with free neighbours of its segment. A block with other streams recorded on it merges
//   once all of them have passed the point of the free and a later malloc has looked; until then it is active but not
//   allocated.
// - The device is full: free enough blocks of max_split_size and more (if set). Otherwise wait for all streams, give
//   back every segment that is one free block, and try once more (a retry: milliseconds to seconds of a stalled
//   device). If that fails, the request is out of memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "simulator/allocator/free_list.h"

namespace fsdp {

inline constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
// What a device without a limit has: more than any Program's tensors (activations have at most kMostMicroBatchBytes,
// models/input/limits.h; gathered parameters, gradients and reduce inputs at most as much each), and small enough that
// no sum of addresses and sizes overflows.
inline constexpr std::int64_t kMostReserved = std::int64_t{1} << 57;

// PYTORCH_ALLOC_CONF, in bytes where it says MiB.
struct AllocatorSettings {
  std::int64_t capacity = kNoLimit;  // what the device has for segments; below 0: nothing
  std::int64_t allowed = kNoLimit;   // set_per_process_memory_fraction, in bytes: checked before the device is asked
  bool expandable_segments = false;
  std::int64_t max_split_size = kNoLimit;  // blocks of this size and more are not split, nor given to smaller requests
  std::int64_t max_non_split_rounding = std::int64_t{20} << 20;  // such a block serves requests up to this much smaller
  std::int64_t large_segment = std::int64_t{20} << 20;
  double garbage_collection_threshold =
      0;  // share of `allowed`, which must be set, above which old free segments go; 0: never
  std::int64_t roundup_power2_divisions = 0;  // 0, 1: multiples of 512 bytes
};

struct AllocatorStat {
  std::int64_t current = 0, peak = 0;
  friend bool operator==(const AllocatorStat&, const AllocatorStat&) = default;
};
struct AllocatorStats {          // bytes, as torch.cuda.memory_stats counts them
  AllocatorStat allocated;       // blocks handed out
  AllocatorStat requested;       // what was asked for, of active blocks
  AllocatorStat active;          // allocated, or freed and waiting for a stream
  AllocatorStat reserved;        // taken from the device
  AllocatorStat inactive_split;  // free parts of segments in use; expandable segments are not counted
  std::int64_t segments = 0;     // in use now; expandable ranges are not counted
  std::int64_t retries = 0, out_of_memory = 0;
  friend bool operator==(const AllocatorStats&, const AllocatorStats&) = default;
};

struct OutOfMemory {       // what a malloc that failed wanted, and found after giving back all it could
  std::int64_t bytes = 0;  // asked for
  std::int64_t allocated = 0, active = 0, reserved = 0;
};

struct SegmentChange {  // what the device gives (bytes > 0) or gets back
  std::int64_t address = 0, bytes = 0;
  friend bool operator==(const SegmentChange&, const SegmentChange&) = default;
};

enum class BlockState : std::uint8_t { free, allocated, waiting, unmapped };
struct BlockView {
  std::int64_t address = 0, bytes = 0, requested = 0;
  BlockState state{};
  int stream = 0;
  bool small = false, expandable = false, first = false;  // first of its segment or range
  friend bool operator==(const BlockView&, const BlockView&) = default;
};

class CachingAllocator {
 public:
  using Handle = std::int32_t;
  static constexpr Handle kNone = -1;
  static constexpr int kMaxStreams = 16;

  explicit CachingAllocator(const AllocatorSettings& = {});  // throws InternalError for a large_segment below 1

  // A block of at least `bytes` > 0 for `stream` < kMaxStreams. `now` is the host's time; it never goes back between
  // calls.
  [[nodiscard]] Handle malloc(std::int64_t bytes, int stream, double now);
  void record_stream(Handle, int stream);
  // done[s]: when all that was issued on stream s before this free will have ended; only recorded streams are read, and
  // a stream that `done` does not reach never ends by itself. The handle is dead afterwards.
  void free(Handle, std::span<const double> done = {});
  void finish_all();            // every event has completed; the blocks come back at the next malloc
  void move_origin(double by);  // times are counted from `by` later on
  void empty_cache();           // waits for all streams and gives back every segment that is one free block

  [[nodiscard]] std::int64_t address(Handle h) const { return block(h).address; }
  [[nodiscard]] std::int64_t size(Handle h) const { return block(h).size; }
  [[nodiscard]] const AllocatorStats& stats() const { return stats_; }
  [[nodiscard]] const OutOfMemory& out_of_memory() const { return oom_; }
  [[nodiscard]] const std::vector<SegmentChange>& changes() const { return changes_; }  // since construction
  [[nodiscard]] std::vector<BlockView> blocks() const;                                  // by address
  struct Pending {
    std::int64_t address;
    int stream;
    double done;
    friend bool operator==(const Pending&, const Pending&) = default;
  };
  [[nodiscard]] std::vector<Pending> pending() const;  // events not yet seen to have completed
  [[nodiscard]] std::int64_t round(std::int64_t bytes) const;

 private:
  struct Block {
    std::int64_t address = 0, size = 0, requested = 0,
                 born = 0;  // born: of its life as a free block, in searches of its pool
    Handle prev = kNone, next = kNone;
    std::int32_t range = -1;            // expandable: index into ranges_
    std::int16_t pool = 0, events = 0;  // pool: 2 * stream + (large ? 1 : 0)
    std::uint16_t uses = 0;             // streams recorded
    bool allocated = false, mapped = true;
  };
  struct Event {
    double done;
    Handle block;
  };
  struct Range {
    std::int64_t address = 0, size = 0, page = 0;
  };

  [[nodiscard]] Block& block(Handle h) { return blocks_[static_cast<std::size_t>(h)]; }
  [[nodiscard]] const Block& block(Handle h) const { return blocks_[static_cast<std::size_t>(h)]; }
  [[nodiscard]] FreeList& free_list(std::int16_t pool) { return free_[static_cast<std::size_t>(pool)]; }
  [[nodiscard]] Handle make_block(std::int64_t address, std::int64_t size, std::int16_t pool, std::int32_t range);
  void drop_block(Handle);
  void splice(Handle, Handle before, Handle after);
  void add_free(Handle);
  void remove_free(Handle);
  [[nodiscard]] std::vector<Handle> free_blocks(std::size_t pool) const;  // by size, then address
  [[nodiscard]] std::int64_t merge(Handle into, Handle from);
  [[nodiscard]] bool idle(Handle h) const { return h != kNone && !block(h).allocated && block(h).events == 0; }
  [[nodiscard]] bool is_split(const Block& b) const { return b.prev != kNone || b.next != kNone; }

  [[nodiscard]] Handle fail(std::int64_t bytes);
  void poll(double now);
  void free_block(Handle);
  [[nodiscard]] Handle take(Handle, std::int64_t size, std::int64_t requested);
  [[nodiscard]] Handle find_free(std::int16_t pool, std::int64_t size);
  [[nodiscard]] Handle new_segment(std::int16_t pool, std::int64_t size);
  [[nodiscard]] bool has_addresses(std::int64_t bytes) const;
  [[nodiscard]] bool reserve(std::int64_t address, std::int64_t bytes);
  void unreserve(std::int64_t address, std::int64_t bytes);
  void release_segment(Handle);
  void release_cached();
  [[nodiscard]] bool release_oversize(std::int16_t pool, std::int64_t size);
  void collect_garbage();
  // expandable.cpp
  [[nodiscard]] Handle expand(std::int16_t pool, std::int64_t size);
  [[nodiscard]] Handle find_room(std::int16_t pool, std::int64_t size);
  [[nodiscard]] bool map(Handle, std::int64_t size);
  void unmap(Handle);
  void add_unmapped(Handle);
  void remove_unmapped(Handle);

  AllocatorSettings settings_;
  std::vector<Block> blocks_;
  std::vector<Handle> unused_;                                 // of blocks_
  std::array<FreeList, 2 * kMaxStreams> free_;                 // by pool
  std::array<std::vector<Handle>, 2 * kMaxStreams> unmapped_;  // by pool; ascending address
  std::vector<Range> ranges_;
  std::array<std::deque<Event>, kMaxStreams> events_;
  std::int64_t events_waiting_ = 0;
  std::array<std::int64_t, 2> searches_{};  // of the small and of the large pools, while garbage collection is on
  std::int64_t next_address_ = 0;
  AllocatorStats stats_;
  OutOfMemory oom_;
  std::vector<SegmentChange> changes_;
};

}  // namespace fsdp
