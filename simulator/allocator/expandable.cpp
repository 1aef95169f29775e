// Expandable segments: one range of addresses for each stream's small and large pool, 9/8 of the device long, of which
// only the pages in use are mapped. A range is a chain of blocks as a segment is; blocks without pages are `!mapped`,
// page-aligned, in no free list.
#include <algorithm>

#include "models/input/error.h"
#include "simulator/allocator/allocator.h"
#include "simulator/allocator/round_up.h"

namespace fsdp {

namespace {

constexpr std::int64_t kSmallPage = 2 * kMiB;

}  // namespace

void CachingAllocator::add_unmapped(Handle h) {
  auto& list = unmapped_[static_cast<std::size_t>(block(h).pool)];
  const auto lower = [&](Handle a, Handle b) { return block(a).address < block(b).address; };
  list.insert(std::lower_bound(list.begin(), list.end(), h, lower), h);
}

void CachingAllocator::remove_unmapped(Handle h) {
  auto& list = unmapped_[static_cast<std::size_t>(block(h).pool)];
  list.erase(std::find(list.begin(), list.end(), h));
}

// The first of the idle blocks, mapped or not, that together hold `size` bytes at the lowest address where some of it
// is unmapped; kNone: no range can hold it.
CachingAllocator::Handle CachingAllocator::find_room(std::int16_t pool, std::int64_t size) {
  for (const Handle u : unmapped_[static_cast<std::size_t>(pool)]) {
    const Handle first = idle(block(u).prev) ? block(u).prev : u;
    std::int64_t bytes = 0;
    for (Handle h = first; bytes < size && idle(h); h = block(h).next) bytes += block(h).size;
    if (bytes >= size) return first;
  }
  const std::int64_t page = (pool & 1) != 0 ? settings_.large_segment : kSmallPage;
  const std::int64_t bytes = round_up(settings_.capacity + settings_.capacity / 8, page);
  if (bytes < size || !has_addresses(bytes)) return kNone;
  ranges_.push_back({next_address_, bytes, page});
  const Handle h = make_block(next_address_, ranges_.back().size, pool, static_cast<std::int32_t>(ranges_.size()) - 1);
  next_address_ += round_up(ranges_.back().size, kSmallPage);
  block(h).mapped = false;
  add_unmapped(h);
  return h;
}

// Maps the first pages of an unmapped block, enough for `size`. It joins its free neighbours and the free list.
bool CachingAllocator::map(Handle h, std::int64_t size) {
  const std::int64_t bytes = round_up(size, ranges_[static_cast<std::size_t>(block(h).range)].page);
  if (!reserve(block(h).address, bytes)) return false;
  remove_unmapped(h);
  block(h).mapped = true;
  if (bytes < block(h).size) {
    const Handle rest = make_block(block(h).address + bytes, block(h).size - bytes, block(h).pool, block(h).range);
    block(rest).mapped = false;
    splice(rest, h, block(h).next);
    block(h).size = bytes;
    add_unmapped(rest);
  }
  (void)merge(h, block(h).prev);
  (void)merge(h, block(h).next);
  add_free(h);
  return true;
}

// A mapped block of at least `size` bytes, in no list; what was mapped before the device ran out stays, free.
CachingAllocator::Handle CachingAllocator::expand(std::int16_t pool, std::int64_t size) {
  Handle h = find_room(pool, size);
  if (h == kNone) return kNone;
  if (!block(h).mapped && !map(h, std::min(block(h).size, size))) return kNone;
  while (block(h).size < size) {
    const Handle next = block(h).next;
    if (!idle(next) || block(next).mapped) throw InternalError("caching allocator: a range ends before its room does");
    if (!map(next, std::min(size - block(h).size, block(next).size))) return kNone;
    h = next;
  }
  remove_free(h);
  return h;
}

// Gives back the pages that lie wholly inside a free block; a range without pages ends.
void CachingAllocator::unmap(Handle h) {
  const Range range = ranges_[static_cast<std::size_t>(block(h).range)];
  const std::int64_t begin = range.address + round_up(block(h).address - range.address, range.page);
  const std::int64_t end = range.address + (block(h).address + block(h).size - range.address) / range.page * range.page;
  if (begin >= end) return;
  remove_free(h);
  const auto cut_off = [&](std::int64_t address, std::int64_t size, Handle before, Handle after) {
    const Handle part = make_block(address, size, block(h).pool, block(h).range);
    splice(part, before, after);
    add_free(part);
  };
  const std::int64_t first = block(h).address, last = first + block(h).size;
  if (begin > first) cut_off(first, begin - first, block(h).prev, h);
  if (end < last) cut_off(end, last - end, h, block(h).next);
  block(h).address = begin;
  block(h).size = end - begin;
  block(h).mapped = false;
  (void)merge(h, block(h).prev);
  (void)merge(h, block(h).next);
  add_unmapped(h);
  unreserve(begin, end - begin);
  if (block(h).prev != kNone || block(h).next != kNone) return;
  remove_unmapped(h);
  drop_block(h);
}

}  // namespace fsdp
