// The free blocks of one pool in order of size, then address: a sorted sequence in chunks, so that inserting and
// erasing move a chunk's worth of entries and not the whole list. For simulator/allocator/ alone.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace fsdp {

struct FreeBlock {
  std::int64_t size = 0, address = 0;
  std::int32_t block = -1;
  friend bool operator<(const FreeBlock& a, const FreeBlock& b) {
    return a.size != b.size ? a.size < b.size : a.address < b.address;
  }
};

class FreeList {
 public:
  struct Position {  // of an entry, or the end; any change of the list makes it void
    std::size_t chunk = 0, index = 0;
    friend bool operator==(const Position&, const Position&) = default;
  };

  [[nodiscard]] Position begin() const { return {0, 0}; }
  [[nodiscard]] Position end() const { return {chunks_.size(), 0}; }
  [[nodiscard]] const FreeBlock& at(Position p) const { return chunks_[p.chunk]->entries[p.index]; }
  [[nodiscard]] Position next(Position p) const {
    return p.index + 1 < chunks_[p.chunk]->count ? Position{p.chunk, p.index + 1} : Position{p.chunk + 1, 0};
  }

  // The first entry that is not less.
  [[nodiscard]] Position lower_bound(const FreeBlock& key) const {
    const auto chunk = chunk_of(key);
    if (chunk == chunks_.size()) return end();
    const Chunk& c = *chunks_[chunk];
    return {chunk, static_cast<std::size_t>(std::lower_bound(c.begin(), c.end(), key) - c.begin())};
  }

  void insert(const FreeBlock& entry) {
    std::size_t chunk = chunks_.empty() ? 0 : std::min(chunk_of(entry), chunks_.size() - 1);
    if (chunks_.empty())
      chunks_.push_back(std::make_unique<Chunk>());  // after the search, which reads each chunk's last entry
    if (chunks_[chunk]->count == kChunk) {
      auto upper = std::make_unique<Chunk>();
      Chunk& lower = *chunks_[chunk];
      std::copy(lower.begin() + kChunk / 2, lower.end(), upper->begin());
      lower.count = upper->count = kChunk / 2;
      chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(upper));
      if (*(lower.end() - 1) < entry) ++chunk;
    }
    Chunk& c = *chunks_[chunk];
    FreeBlock* const place = std::lower_bound(c.begin(), c.end(), entry);
    std::copy_backward(place, c.end(), c.end() + 1);
    *place = entry;
    ++c.count;
  }

  void erase(Position p) {
    Chunk& c = *chunks_[p.chunk];
    std::copy(c.begin() + p.index + 1, c.end(), c.begin() + p.index);
    if (--c.count == 0) chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(p.chunk));
  }

 private:
  static constexpr std::size_t kChunk = 32;
  struct Chunk {
    std::size_t count = 0;
    std::array<FreeBlock, kChunk> entries;
    FreeBlock* begin() { return entries.data(); }
    FreeBlock* end() { return entries.data() + count; }
    [[nodiscard]] const FreeBlock* begin() const { return entries.data(); }
    [[nodiscard]] const FreeBlock* end() const { return entries.data() + count; }
  };

  // The first chunk whose last entry is not less; the number of chunks if there is none.
  [[nodiscard]] std::size_t chunk_of(const FreeBlock& key) const {
    const auto it =
        std::partition_point(chunks_.begin(), chunks_.end(), [&](const auto& c) { return *(c->end() - 1) < key; });
    return static_cast<std::size_t>(it - chunks_.begin());
  }

  std::vector<std::unique_ptr<Chunk>> chunks_;  // none is empty
};

}  // namespace fsdp
