#include "executor/ranks/instruments/arena.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include "executor/ranks/instruments/poison.h"
#include "models/input/error.h"
#include "models/units.h"

namespace fsdp::host {

// Behind each arena lies a page of nobody's, so that no address is the end of one and the beginning of another.
constexpr std::size_t kGap = 4096;

Arena::~Arena() {
  if (!owns_) return;
  unpoison(base_, static_cast<std::size_t>(bytes_));
  ::munmap(base_, static_cast<std::size_t>(bytes_) + kGap);
}

void Arena::reserve(std::int64_t bytes) {
  if (base_ != nullptr) throw MachineError(fmt::format("rank {}: the arena is reserved already", rank_));
  if (bytes < 0) throw MachineError(fmt::format("rank {}: an arena of {} bytes", rank_, bytes));
  if (bytes == 0) return;
  void* p = ::mmap(nullptr, static_cast<std::size_t>(bytes) + kGap, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    throw MachineError(fmt::format("rank {}: this machine has no {} for the arena", rank_, human(Bytes(bytes))));
  ::madvise(p, static_cast<std::size_t>(bytes),
            MADV_HUGEPAGE);  // where the system has them: fewer translations; else as it is
  base_ = static_cast<std::byte*>(p);
  bytes_ = bytes;
  owns_ = true;
  poison(base_, static_cast<std::size_t>(bytes_));
}

void Arena::reserve(std::int64_t bytes, std::byte* memory) {
  if (base_ != nullptr) throw MachineError(fmt::format("rank {}: the arena is reserved already", rank_));
  base_ = memory;
  bytes_ = bytes;
}

BufferView Arena::allocate(std::int64_t offset, std::int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > bytes_ || bytes > bytes_ - offset)
    throw MachineError(fmt::format("rank {}: allocation [{}, +{}) lies outside of the arena of {} bytes", rank_, offset,
                                   bytes, bytes_));
  if (bytes == 0) {
    ++empty_[offset];
    return {base_ + offset, 0};
  }
  const auto next = live_.lower_bound(offset);
  const bool hits_next = next != live_.end() && next->first - offset < bytes;
  const bool hits_previous = next != live_.begin() && std::prev(next)->first + std::prev(next)->second > offset;
  if (hits_next || hits_previous) {
    const auto other = hits_previous ? std::prev(next) : next;
    throw MachineError(fmt::format("rank {}: allocation [{}, +{}) overlaps [{}, +{}), which is handed out already",
                                   rank_, offset, bytes, other->first, other->second));
  }
  live_.emplace_hint(next, offset, bytes);
  allocated_ += bytes;
  return {base_ + offset, bytes};
}

void Arena::release(BufferView view) {
  const std::int64_t offset = view.data - base_;
  auto& table = view.bytes == 0 ? empty_ : live_;
  const auto found = table.find(offset);
  if (found == table.end() || (view.bytes != 0 && found->second != view.bytes))
    throw MachineError(fmt::format("rank {}: release of {} bytes at offset {}, which were never handed out", rank_,
                                   view.bytes, offset));
  if (view.bytes != 0 || --found->second == 0) table.erase(found);
  allocated_ -= view.bytes;
}

}  // namespace fsdp::host
