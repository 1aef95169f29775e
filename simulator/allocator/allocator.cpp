#include "simulator/allocator/allocator.h"

#include <algorithm>
#include <bit>
#include <string>

#include "models/input/error.h"
#include "simulator/allocator/round_up.h"

namespace fsdp {

namespace {

constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kSmall = kMiB;  // largest small request
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kMinLarge = 10 * kMiB;  // from here on a request has a segment of its own
constexpr std::int64_t kRoundLarge = 2 * kMiB;
constexpr std::int64_t kMostAddress = std::int64_t{1} << 62;

constexpr bool is_large(std::int16_t pool) { return (pool & 1) != 0; }

void add(AllocatorStat& stat, std::int64_t amount) {
  stat.current += amount;
  stat.peak = std::max(stat.peak, stat.current);
}

}  // namespace

CachingAllocator::CachingAllocator(const AllocatorSettings& settings) : settings_(settings) {
  if (settings_.large_segment < 1 || settings_.large_segment > kMostReserved)
    throw InternalError("caching allocator: segments of " + std::to_string(settings_.large_segment) + " bytes");
  settings_.capacity = std::clamp<std::int64_t>(settings_.capacity, 0, kMostReserved);
}

// With d divisions: the next of d equal steps between two powers of two; too few bytes for d steps of 512: multiples of
// 512.
std::int64_t CachingAllocator::round(std::int64_t bytes) const {
  if (bytes < kMinBlock) return kMinBlock;
  const std::int64_t divisions = settings_.roundup_power2_divisions;
  if (divisions <= 1 || bytes <= kMinBlock * divisions) return round_up(bytes, kMinBlock);
  const auto size = static_cast<std::uint64_t>(bytes);
  if (std::has_single_bit(size)) return bytes;
  return round_up(
      bytes, static_cast<std::int64_t>(std::bit_floor(size) / std::bit_floor(static_cast<std::uint64_t>(divisions))));
}

CachingAllocator::Handle CachingAllocator::malloc(std::int64_t bytes, int stream, double now) {
  if (bytes <= 0 || stream < 0 || stream >= kMaxStreams)
    throw InternalError("caching allocator: " + std::to_string(bytes) + " bytes for stream " + std::to_string(stream));
  if (events_waiting_ > 0) poll(now);
  if (bytes > kMostReserved) return fail(bytes);
  const std::int64_t size = round(bytes);
  const auto pool = static_cast<std::int16_t>(2 * stream + (size > kSmall ? 1 : 0));
  Handle found = find_free(pool, size);
  if (found == kNone) {
    if (settings_.garbage_collection_threshold > 0 && settings_.allowed != kNoLimit) collect_garbage();
    found = new_segment(pool, size);
    if (found == kNone && release_oversize(pool, size)) found = new_segment(pool, size);
    if (found == kNone) {
      release_cached();
      ++stats_.retries;
      found = new_segment(pool, size);
    }
  }
  return found == kNone ? fail(bytes) : take(found, size, bytes);
}

CachingAllocator::Handle CachingAllocator::fail(std::int64_t bytes) {
  ++stats_.out_of_memory;
  oom_ = {bytes, stats_.allocated.current, stats_.active.current, stats_.reserved.current};
  return kNone;
}

void CachingAllocator::record_stream(Handle h, int stream) {
  if (stream < 0 || stream >= kMaxStreams)
    throw InternalError("caching allocator: there is no stream " + std::to_string(stream));
  Block& b = block(h);
  if (stream != b.pool / 2) b.uses = static_cast<std::uint16_t>(b.uses | 1u << static_cast<unsigned>(stream));
}

void CachingAllocator::free(Handle h, std::span<const double> done) {
  Block& b = block(h);
  if (!b.allocated) throw InternalError("caching allocator: a block is freed twice");
  b.allocated = false;
  add(stats_.allocated, -b.size);
  if (b.uses == 0) return free_block(h);
  for (std::size_t s = 0; s < kMaxStreams; ++s) {
    if ((b.uses >> s & 1u) == 0) continue;
    events_[s].push_back({s < done.size() ? done[s] : std::numeric_limits<double>::infinity(), h});
    ++b.events;
    ++events_waiting_;
  }
  b.uses = 0;
}

// Events of one stream complete in order; a stream that is late holds up only its own.
void CachingAllocator::poll(double now) {
  for (auto& queue : events_) {
    while (!queue.empty() && queue.front().done <= now) {
      const Handle h = queue.front().block;
      queue.pop_front();
      --events_waiting_;
      if (--block(h).events == 0) free_block(h);
    }
  }
}

void CachingAllocator::finish_all() {
  for (auto& queue : events_)
    for (Event& e : queue) e.done = -std::numeric_limits<double>::infinity();
}

void CachingAllocator::move_origin(double by) {
  for (auto& queue : events_)
    for (Event& e : queue) e.done -= by;
}

void CachingAllocator::free_block(Handle h) {
  Block& b = block(h);
  add(stats_.active, -b.size);
  add(stats_.requested, -b.requested);
  const std::int64_t merged = merge(h, b.prev) + merge(h, b.next);
  add_free(h);
  if (b.range < 0) add(stats_.inactive_split, (is_split(b) ? b.size : 0) - merged);
}

// The smallest free block that the request may have.
CachingAllocator::Handle CachingAllocator::find_free(std::int16_t pool, std::int64_t size) {
  FreeList& list = free_list(pool);
  if (settings_.garbage_collection_threshold > 0) ++searches_[is_large(pool)];
  FreeList::Position it = list.lower_bound({size, 0, kNone});
  if (it == list.end()) return kNone;
  if (settings_.expandable_segments) {
    // A block that can grow counts with all the room it can grow into: a hole further up is taken before the end of the
    // range.
    const auto room = [&](FreeList::Position p) {
      const FreeBlock& f = list.at(p);
      const Handle next = block(f.block).next;
      return f.size + (next != kNone && !block(next).mapped ? block(next).size : 0);
    };
    for (auto next = list.next(it); next != list.end() && room(next) < room(it); next = list.next(next)) it = next;
  }
  const bool oversize = size >= settings_.max_split_size;
  const std::int64_t offered = list.at(it).size;
  if (!oversize && offered >= settings_.max_split_size) return kNone;
  if (oversize && offered - size >= settings_.max_non_split_rounding) return kNone;
  const Handle found = list.at(it).block;
  list.erase(it);
  return found;
}

// Hands out a block that is in no list, splitting off what is left where that is worth it.
CachingAllocator::Handle CachingAllocator::take(Handle found, std::int64_t size, std::int64_t requested) {
  const std::int64_t left = block(found).size - size;
  const std::int16_t pool = block(found).pool;
  const bool expandable = block(found).range >= 0, was_split = is_split(block(found));
  const bool split =
      !is_large(pool) || expandable ? left >= kMinBlock : size < settings_.max_split_size && left > kSmall;
  Handle h = found;
  if (split) {
    h = make_block(block(found).address, size, pool, block(found).range);
    splice(h, block(found).prev, found);
    block(found).address += size;
    block(found).size = left;
    add_free(found);
  }
  Block& b = block(h);
  if (!expandable && was_split) add(stats_.inactive_split, -b.size);
  if (!expandable && !was_split && split) add(stats_.inactive_split, left);
  b.allocated = true;
  b.requested = requested;
  add(stats_.allocated, b.size);
  add(stats_.active, b.size);
  add(stats_.requested, requested);
  return h;
}

// A block from the device, in no list yet.
CachingAllocator::Handle CachingAllocator::new_segment(std::int16_t pool, std::int64_t size) {
  const std::int64_t bytes = !is_large(pool)    ? kSmallSegment
                             : size < kMinLarge ? settings_.large_segment
                                                : round_up(size, kRoundLarge);
  if (settings_.allowed != kNoLimit && stats_.reserved.current + bytes > settings_.allowed) return kNone;
  if (settings_.expandable_segments) return expand(pool, size);
  if (!has_addresses(bytes) || !reserve(next_address_, bytes)) return kNone;
  const Handle h = make_block(next_address_, bytes, pool, -1);
  next_address_ += round_up(bytes, kRoundLarge);
  ++stats_.segments;
  return h;
}

// Addresses are never used twice.
bool CachingAllocator::has_addresses(std::int64_t bytes) const { return bytes <= kMostAddress - next_address_; }

bool CachingAllocator::reserve(std::int64_t address, std::int64_t bytes) {
  if (bytes > settings_.capacity - stats_.reserved.current) return false;
  add(stats_.reserved, bytes);
  changes_.push_back({address, bytes});
  return true;
}

void CachingAllocator::unreserve(std::int64_t address, std::int64_t bytes) {
  add(stats_.reserved, -bytes);
  changes_.push_back({address, -bytes});
}

void CachingAllocator::release_segment(Handle h) {
  unreserve(block(h).address, block(h).size);
  --stats_.segments;
  remove_free(h);
  drop_block(h);
}

void CachingAllocator::release_cached() {
  finish_all();
  poll(0);
  for (const bool large : {true, false}) {
    for (std::size_t pool = large ? 1 : 0; pool < free_.size(); pool += 2) {
      for (const Handle h : free_blocks(pool)) {
        if (block(h).range >= 0) unmap(h);
        else if (!is_split(block(h))) release_segment(h);
      }
    }
  }
}

void CachingAllocator::empty_cache() { release_cached(); }

// max_split_size: one oversize block that the request would fit into, or the largest ones until enough bytes are free.
bool CachingAllocator::release_oversize(std::int16_t pool, std::int64_t size) {
  if (settings_.max_split_size == kNoLimit) return false;
  const std::int64_t wanted = std::max(size, settings_.max_split_size);
  std::vector<Handle> smaller;  // at least max_split_size, less than wanted
  for (const Handle h : free_blocks(static_cast<std::size_t>(pool))) {
    if (block(h).size < settings_.max_split_size) continue;
    if (block(h).size < wanted) {
      smaller.push_back(h);
      continue;
    }
    if (block(h).range >= 0) break;
    release_segment(h);
    return true;
  }
  std::int64_t released = 0;
  for (; !smaller.empty() && released < wanted; smaller.pop_back()) {
    if (block(smaller.back()).range >= 0) continue;
    released += block(smaller.back()).size;
    release_segment(smaller.back());
  }
  return released >= wanted;
}

// Gives back whole free segments of the large pools that have been free for at least the average number of searches,
// until reserved is below the threshold.
void CachingAllocator::collect_garbage() {
  const auto threshold =
      static_cast<std::int64_t>(settings_.garbage_collection_threshold * static_cast<double>(settings_.allowed));
  const std::int64_t target = stats_.reserved.current - threshold;
  if (target <= 0) return;
  std::vector<Handle> whole;
  std::int64_t total_age = 0;
  const auto age = [&](Handle h) { return searches_[1] - block(h).born; };
  for (std::size_t pool = 1; pool < free_.size(); pool += 2)
    for (const Handle h : free_blocks(pool))
      if (block(h).range < 0 && !is_split(block(h))) whole.push_back(h), total_age += age(h);
  std::int64_t reclaimed = 0;
  for (bool freed = true; freed && reclaimed < target && !whole.empty();) {
    const double old = static_cast<double>(total_age) / static_cast<double>(whole.size());
    const auto keep =
        std::partition(whole.begin(), whole.end(), [&](Handle h) { return static_cast<double>(age(h)) < old; });
    freed = keep != whole.end();
    for (auto it = keep; it != whole.end(); ++it) {
      reclaimed += block(*it).size;
      total_age -= age(*it);
      release_segment(*it);
    }
    whole.erase(keep, whole.end());
  }
}

CachingAllocator::Handle CachingAllocator::make_block(std::int64_t address, std::int64_t size, std::int16_t pool,
                                                      std::int32_t range) {
  Handle h = static_cast<Handle>(blocks_.size());
  if (unused_.empty()) {
    blocks_.emplace_back();
  } else {
    h = unused_.back();
    unused_.pop_back();
    block(h) = {};
  }
  block(h).address = address;
  block(h).size = size;
  block(h).pool = pool;
  block(h).range = range;
  return h;
}

void CachingAllocator::drop_block(Handle h) {
  block(h).size = 0;  // marks it unused
  unused_.push_back(h);
}

void CachingAllocator::splice(Handle h, Handle before, Handle after) {
  block(h).prev = before;
  block(h).next = after;
  if (before != kNone) block(before).next = h;
  if (after != kNone) block(after).prev = h;
}

void CachingAllocator::add_free(Handle h) {
  Block& b = block(h);
  b.born = searches_[is_large(b.pool)];
  free_list(b.pool).insert({b.size, b.address, h});
}

void CachingAllocator::remove_free(Handle h) {
  FreeList& list = free_list(block(h).pool);
  list.erase(list.lower_bound({block(h).size, block(h).address, h}));
}

std::vector<CachingAllocator::Handle> CachingAllocator::free_blocks(std::size_t pool) const {
  std::vector<Handle> all;
  const FreeList& list = free_[pool];
  for (auto p = list.begin(); p != list.end(); p = list.next(p)) all.push_back(list.at(p).block);
  return all;
}

// Joins a free neighbour to a block that is in no list; the bytes that it brings, 0 if it cannot.
std::int64_t CachingAllocator::merge(Handle into, Handle from) {
  if (!idle(from) || block(into).mapped != block(from).mapped) return 0;
  Block& b = block(into);
  const Block& f = block(from);
  if (f.mapped) remove_free(from);
  else remove_unmapped(from);
  if (b.prev == from) {
    b.address = f.address;
    splice(into, f.prev, b.next);
  } else {
    splice(into, b.prev, f.next);
  }
  b.size += f.size;
  const std::int64_t bytes = f.size;
  drop_block(from);
  return bytes;
}

std::vector<BlockView> CachingAllocator::blocks() const {
  std::vector<BlockView> views;
  for (const Block& b : blocks_) {
    if (b.size == 0) continue;
    const BlockState idle = b.mapped ? BlockState::free : BlockState::unmapped;
    const BlockState state = b.allocated ? BlockState::allocated : b.events > 0 ? BlockState::waiting : idle;
    const std::int64_t requested = state == idle ? 0 : b.requested;
    views.push_back(
        {b.address, b.size, requested, state, b.pool / 2, !is_large(b.pool), b.range >= 0, b.prev == kNone});
  }
  std::sort(views.begin(), views.end(), [](const BlockView& a, const BlockView& b) { return a.address < b.address; });
  return views;
}

std::vector<CachingAllocator::Pending> CachingAllocator::pending() const {
  std::vector<Pending> all;
  for (std::size_t s = 0; s < events_.size(); ++s)
    for (const Event& e : events_[s]) all.push_back({block(e.block).address, static_cast<int>(s), e.done});
  return all;
}

}  // namespace fsdp
