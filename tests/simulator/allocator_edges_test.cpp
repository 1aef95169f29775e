// The caching allocator at the edges of what 64 bits hold: it answers "out of memory" with numbers, and never leaves
// its blocks.
#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "models/input/error.h"
#include "simulator/allocator/allocator.h"

using namespace fsdp;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20, kTiB = std::int64_t{1} << 40;
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// Blocks of one segment or range touch, none is empty, none overlaps the next.
void check_blocks(const CachingAllocator& a) {
  std::int64_t end = 0, allocated = 0;
  for (const BlockView& b : a.blocks()) {
    REQUIRE(b.bytes > 0);
    REQUIRE(b.address >= end);
    REQUIRE((b.first || b.address == end));
    REQUIRE(b.bytes <= kLargest - b.address);
    end = b.address + b.bytes;
    allocated += b.state == BlockState::allocated ? b.bytes : 0;
  }
  CHECK(allocated == a.stats().allocated.current);
  CHECK(a.stats().reserved.current >= allocated);
}

}  // namespace

TEST_CASE("a tensor larger than 8 TiB fits a device without a limit") {
  for (const bool expandable : {false, true}) {
    CAPTURE(expandable);
    CachingAllocator a({.expandable_segments = expandable});
    const auto small = a.malloc(4 * kMiB, 0, 0);
    const auto large = a.malloc(9 * kTiB, 0, 0);
    REQUIRE(small != CachingAllocator::kNone);
    REQUIRE(large != CachingAllocator::kNone);
    CHECK(a.size(large) >= 9 * kTiB);
    CHECK(a.stats().allocated.current == a.size(small) + a.size(large));
    check_blocks(a);
    a.free(large);
    CHECK(a.malloc(20 * kTiB, 0, 0) != CachingAllocator::kNone);
    check_blocks(a);
  }
}

TEST_CASE("many tensors, together larger than any range was, fit a device without a limit") {
  CachingAllocator a({.expandable_segments = true});
  for (int i = 0; i < 64; ++i) {
    REQUIRE(a.malloc(100 * kTiB, i % 3, 0) != CachingAllocator::kNone);
    check_blocks(a);
  }
  CHECK(a.stats().allocated.current == 6400 * kTiB);
}

TEST_CASE("a tensor larger than the device is out of memory, and the device goes on") {
  for (const bool expandable : {false, true}) {
    for (const std::int64_t capacity : {std::int64_t{0}, kMiB, 80 * kMiB, 8 * kTiB, kTiB << 10}) {
      CAPTURE(expandable);
      CAPTURE(capacity);
      CachingAllocator a({.capacity = capacity, .expandable_segments = expandable});
      for (const std::int64_t bytes : {capacity + 1, capacity + capacity / 8 + 1, 9 * capacity + 30 * kMiB,
                                       kMostReserved, kMostReserved + 1, kLargest - 511, kLargest}) {
        CHECK(a.malloc(bytes, 0, 0) == CachingAllocator::kNone);
        CHECK(a.out_of_memory().bytes == bytes);
        CHECK(a.stats().reserved.current <= capacity);
        check_blocks(a);
      }
      CHECK(a.stats().out_of_memory == 7);
      if (capacity >= 80 * kMiB) CHECK(a.malloc(40 * kMiB, 0, 0) != CachingAllocator::kNone);
      check_blocks(a);
    }
  }
}

TEST_CASE("a limit below zero is a device without memory") {
  for (const bool expandable : {false, true}) {
    CachingAllocator a({.capacity = -(5 * kTiB), .expandable_segments = expandable});
    CHECK(a.malloc(1, 0, 0) == CachingAllocator::kNone);
    CHECK(a.stats().reserved.current == 0);
    check_blocks(a);
  }
}

TEST_CASE("the largest limit is no limit") {
  for (const std::int64_t capacity : {kNoLimit, kNoLimit - 1, kMostReserved + 1}) {
    CachingAllocator a({.capacity = capacity, .expandable_segments = true});
    CHECK(a.malloc(kMostReserved / 2, 0, 0) != CachingAllocator::kNone);
    CHECK(a.malloc(kMostReserved / 2 - 40 * kMiB, 1, 0) != CachingAllocator::kNone);
    CHECK(a.malloc(kMostReserved / 2, 1, 0) == CachingAllocator::kNone);
    check_blocks(a);
  }
}

TEST_CASE("addresses run out as memory does") {
  for (const bool expandable : {false, true}) {
    CAPTURE(expandable);
    CachingAllocator a({.expandable_segments = expandable});
    int refused = 0;
    for (int i = 0; i < 200; ++i) {  // the same memory again and again, at ever new addresses
      const auto h = a.malloc(kMostReserved - i * 2 * kMiB, i % CachingAllocator::kMaxStreams, 0);
      check_blocks(a);
      if (h != CachingAllocator::kNone) a.free(h);
      else ++refused;
    }
    if (!expandable) CHECK(refused > 0);  // every segment has new ones
  }
}

TEST_CASE("sizes at every power of two keep the blocks whole") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    AllocatorSettings settings;
    settings.expandable_segments = random() % 2 == 0;
    if (random() % 2 == 0) settings.capacity = std::int64_t{1} << (20 + random() % 40);
    if (random() % 4 == 0) settings.max_split_size = 40 * kMiB, settings.max_non_split_rounding = kLargest;
    if (random() % 4 == 0) settings.roundup_power2_divisions = 8;
    CachingAllocator a(settings);
    std::vector<CachingAllocator::Handle> live;
    for (int i = 0; i < 80; ++i) {
      const std::int64_t near = std::int64_t{1} << (random() % 63);
      const std::int64_t bytes = near == 1 ? 1 : near - 1 + static_cast<std::int64_t>(random() % 3);
      const auto h = a.malloc(bytes, static_cast<int>(random() % 3), i);
      if (h != CachingAllocator::kNone) {
        REQUIRE(a.size(h) >= bytes);
        live.push_back(h);
      } else if (!live.empty()) {
        a.free(live.back());
        live.pop_back();
      }
      check_blocks(a);
    }
    CHECK(a.stats().reserved.peak <= std::min(settings.capacity, kMostReserved));
  }
}

TEST_CASE("settings and streams that no allocator has are errors of ours") {
  CHECK_THROWS_AS(CachingAllocator({.large_segment = 0}), InternalError);
  CachingAllocator a;
  CHECK_THROWS_AS((void)a.malloc(0, 0, 0), InternalError);
  CHECK_THROWS_AS((void)a.malloc(1, CachingAllocator::kMaxStreams, 0), InternalError);
  const auto h = a.malloc(1, 0, 0);
  CHECK_THROWS_AS(a.record_stream(h, CachingAllocator::kMaxStreams), InternalError);
  CHECK_THROWS_AS(a.record_stream(h, -1), InternalError);
}
