// Allocator instrument: one range of memory per rank, handed out at the offsets that lowering assigned. Refuses
// overlapping allocations and releases of memory that it did not hand out. Counts the bytes handed out.
#pragma once

#include <cstdint>
#include <map>

#include "executor/backend.h"

namespace fsdp::host {

class Arena {
 public:
  explicit Arena(std::int64_t rank) : rank_(rank) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void reserve(std::int64_t bytes);  // once; page-aligned, poisoned until handed out
  // The same over memory that the caller owns and that must outlive the arena, which never reads or writes it. It may
  // not end where another arena begins.
  void reserve(std::int64_t bytes, std::byte* memory);
  [[nodiscard]] BufferView allocate(std::int64_t offset, std::int64_t bytes);
  void release(BufferView);
  [[nodiscard]] bool holds(BufferView view) const {
    return base_ != nullptr && view.data >= base_ && view.data <= base_ + bytes_;
  }
  [[nodiscard]] std::int64_t allocated_bytes() const { return allocated_; }

 private:
  std::int64_t rank_;
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0, allocated_ = 0;
  bool owns_ = false;
  std::map<std::int64_t, std::int64_t> live_;   // offset -> bytes, never overlapping
  std::map<std::int64_t, std::int64_t> empty_;  // offset -> how many allocations of zero bytes are live
};

}  // namespace fsdp::host
