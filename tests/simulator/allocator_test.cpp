// The caching allocator model. What it must do is said twice, independently: by sequences whose numbers are derived in
// comments, and by what PyTorch's own library did with other sequences (tests/torch/golden/allocator.json, recorded by
// tests/torch/record_allocator.py).
#include "simulator/allocator/allocator.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

using namespace fsdp;
using Json = nlohmann::json;

namespace {

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;
constexpr double kNever = std::numeric_limits<double>::infinity();

// --- PyTorch's own answers ---

AllocatorSettings settings_of(const Json& c) {
  const Json& given = c.at("settings");
  AllocatorSettings s;
  s.capacity = c.at("device").get<std::int64_t>();
  s.expandable_segments = given.value("expandable_segments", false);
  if (given.contains("max_split_size_mb")) s.max_split_size = given.at("max_split_size_mb").get<std::int64_t>() * kMiB;
  s.max_non_split_rounding = given.value("max_non_split_rounding_mb", std::int64_t{20}) * kMiB;
  s.large_segment = given.value("large_segment_size_mb", std::int64_t{20}) * kMiB;
  s.garbage_collection_threshold = given.value("garbage_collection_threshold", 0.0);
  s.roundup_power2_divisions = given.value("roundup_power2_divisions", 0);
  const double fraction = given.value("fraction", 0.0);
  if (fraction > 0) s.allowed = static_cast<std::int64_t>(fraction * static_cast<double>(s.capacity));
  return s;
}

struct Request {
  char what = 0;
  std::int64_t id = 0, bytes = 0;
  int stream = 0;
};

std::vector<Request> requests_of(const Json& c) {
  std::vector<Request> requests;
  std::istringstream text(c.at("requests").get<std::string>());
  for (std::string one; std::getline(text, one, ';');) {
    std::istringstream words(one);
    Request r;
    words >> r.what;
    if (r.what == 'm') words >> r.id >> r.bytes >> r.stream;
    if (r.what == 'f') words >> r.id;
    if (r.what == 'u') words >> r.id >> r.stream;
    if (r.what == 'd') words >> r.stream;
    requests.push_back(r);
  }
  return requests;
}

// Time is the number of the request. What is freed at request i has ended on stream s at the next "d s".
std::vector<double> ends_after(const std::vector<Request>& requests, std::size_t i) {
  std::vector<double> done(CachingAllocator::kMaxStreams, kNever);
  for (std::size_t k = i; k < requests.size(); ++k) {
    double& end = done[static_cast<std::size_t>(requests[k].stream)];
    if (requests[k].what == 'd' && end == kNever) end = static_cast<double>(k);
  }
  return done;
}

Json counters(std::size_t i, const AllocatorStats& s) {
  return {i,
          s.allocated.current,
          s.requested.current,
          s.active.current,
          s.reserved.current,
          s.inactive_split.current,
          s.segments,
          s.retries};
}

void check_case(const Json& c) {
  const std::vector<Request> requests = requests_of(c);
  CachingAllocator a(settings_of(c));
  std::map<std::int64_t, CachingAllocator::Handle> blocks;
  std::size_t mallocs = 0, rows = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CAPTURE(i);
    const Request& r = requests[i];
    if (r.what == 'm') {
      const auto h = blocks[r.id] = a.malloc(r.bytes, r.stream, static_cast<double>(i));
      REQUIRE((h == CachingAllocator::kNone ? -1 : a.address(h)) == c.at("addresses")[mallocs++].get<std::int64_t>());
    } else if (r.what == 'f' && blocks.at(r.id) != CachingAllocator::kNone) {
      a.free(blocks.at(r.id), ends_after(requests, i));
    } else if (r.what == 'u' && blocks.at(r.id) != CachingAllocator::kNone) {
      a.record_stream(blocks.at(r.id), r.stream);
    } else if (r.what == 'e') {
      a.empty_cache();
    }
    if (rows < c.at("counters").size() && c.at("counters")[rows][0] == i)
      REQUIRE(counters(i, a.stats()) == c.at("counters")[rows++]);
  }
  CHECK(rows == c.at("counters").size());
  const AllocatorStats& s = a.stats();
  CHECK(Json{s.allocated.peak, s.requested.peak, s.active.peak, s.reserved.peak} == c.at("peaks"));
}

}  // namespace

TEST_CASE("every decision is PyTorch's") {
  const char* const other = std::getenv("FSDP_PLAN_ALLOCATOR_GOLDEN");
  std::ifstream in(other != nullptr ? other : FSDP_TESTS_DIR "/torch/golden/allocator.json");
  const Json golden = Json::parse(in);
  REQUIRE(golden.at("cases").size() >= 1);
  for (const Json& c : golden.at("cases")) {
    const std::string name = c.at("name").get<std::string>();
    CAPTURE(name);
    check_case(c);
  }
}

// --- Derived by hand ---

TEST_CASE("sizes are rounded to 512 bytes, or to steps between powers of two") {
  const CachingAllocator plain;
  CHECK(plain.round(1) == 512);
  CHECK(plain.round(512) == 512);
  CHECK(plain.round(513) == 1024);
  CHECK(plain.round(1'000'000) == 1954 * 512);
  const CachingAllocator quarters({.roundup_power2_divisions = 4});
  CHECK(quarters.round(2048) == 2048);  // up to 4 * 512 bytes there is no room for four steps of 512
  CHECK(quarters.round(2049) == 2560);  // 2048, 2560, 3072, 3584, 4096
  CHECK(quarters.round(3073) == 3584);
  CHECK(quarters.round(70 * kMiB) == 80 * kMiB);  // 64, 80, 96, 112, 128
  CHECK(quarters.round(64 * kMiB) == 64 * kMiB);
}

TEST_CASE("a segment has 2 MiB, 20 MiB, or the request rounded up to 2 MiB") {
  const auto segment_for = [](std::int64_t bytes) {
    CachingAllocator a;
    (void)a.malloc(bytes, 0, 0);
    return a.stats().reserved.current;
  };
  CHECK(segment_for(1) == 2 * kMiB);
  CHECK(segment_for(kMiB) == 2 * kMiB);
  CHECK(segment_for(kMiB + 1) == 20 * kMiB);
  CHECK(segment_for(10 * kMiB - 512) == 20 * kMiB);
  CHECK(segment_for(10 * kMiB - 1) == 10 * kMiB);  // rounds to 10 MiB first
  CHECK(segment_for(10 * kMiB) == 10 * kMiB);
  CHECK(segment_for(10 * kMiB + 1) == 12 * kMiB);
  CHECK(segment_for(33 * kMiB) == 34 * kMiB);
}

TEST_CASE("what is left of a block is split off if it is worth it") {
  CachingAllocator a;
  // Small pool: 2 MiB - 1 MiB = 1 MiB left >= 512 bytes: split.
  const auto small = a.malloc(kMiB, 0, 0);
  CHECK(a.size(small) == kMiB);
  CHECK(a.stats().inactive_split.current == kMiB);
  // 512 bytes are enough to be split off and to serve a request.
  CHECK(a.size(a.malloc(kMiB - 512, 0, 0)) == kMiB - 512);
  CHECK(a.address(a.malloc(1, 0, 0)) == 2 * kMiB - 512);
  CHECK(a.stats().inactive_split.current == 0);
  // Large pool: of 34 MiB for 33 MiB, 1 MiB is left, not more: the request has all of it. allocated counts the block,
  // requested the bytes.
  const auto whole = a.malloc(33 * kMiB, 0, 0);
  CHECK(a.size(whole) == 34 * kMiB);
  CHECK(a.stats().allocated.current == 36 * kMiB);
  CHECK(a.stats().requested.current == 35 * kMiB - 512 + 1);
  // 512 bytes less: 1 MiB + 512 is more than 1 MiB: split.
  a.free(whole);
  const auto part = a.malloc(33 * kMiB - 512, 0, 0);
  CHECK(a.size(part) == 33 * kMiB - 512);
  CHECK(a.stats().reserved.current == 36 * kMiB);
  CHECK(a.stats().inactive_split.current == kMiB + 512);
}

TEST_CASE("the smallest free block that is large enough is taken; neighbours merge; streams do not share") {
  CachingAllocator a;
  // One segment of 20 MiB: [a 4][b 2][c 3][d 2][9 free].
  const auto b1 = a.malloc(4 * kMiB, 0, 0), b2 = a.malloc(2 * kMiB, 0, 0), b3 = a.malloc(3 * kMiB, 0, 0),
             b4 = a.malloc(2 * kMiB, 0, 0);
  CHECK(a.address(b4) == 9 * kMiB);
  a.free(b1);
  a.free(b3);
  // Free: 4 at 0, 3 at 6, 9 at 11. 3 MiB fits best into the 3 at 6; another stream starts a segment of its own.
  const auto best = a.malloc(3 * kMiB, 0, 0);
  CHECK(a.address(best) == 6 * kMiB);
  const auto other = a.malloc(3 * kMiB, 1, 0);
  CHECK(a.address(other) == 20 * kMiB);
  CHECK(a.stats().segments == 2);
  // b2 and best go: [a 4][b 2][c 3] are one free block of 9 MiB, beside the 9 free at 11.
  a.free(b2);
  a.free(best);
  const auto merged = a.malloc(9 * kMiB, 0, 0);
  CHECK(a.address(merged) == 0);  // the lower one of two equals
  CHECK(a.stats().reserved.current == 40 * kMiB);
}

TEST_CASE("a recorded block is active until every recorded stream has passed its free and a later malloc has looked") {
  CachingAllocator a;
  const auto block = a.malloc(30 * kMiB, 2, 0);
  a.record_stream(block, 0);
  a.record_stream(block, 1);
  a.record_stream(block, 2);  // its own stream: nothing
  const double done[] = {5, 7};
  a.free(block, done);
  CHECK(a.stats().allocated.current == 0);
  CHECK(a.stats().active.current == 30 * kMiB);
  CHECK(a.stats().requested.current == 30 * kMiB);
  // Stream 0 is done at 5, stream 1 at 7. At 6 the pool of stream 2 has nothing: a second segment.
  const auto second = a.malloc(30 * kMiB, 2, 6);
  CHECK(a.stats().reserved.current == 60 * kMiB);
  CHECK(a.stats().active.peak == 60 * kMiB);
  CHECK(a.stats().allocated.peak == 30 * kMiB);
  // A malloc of another stream at 7 looks too; the block itself serves its own stream only.
  (void)a.malloc(512, 1, 7);
  CHECK(a.stats().active.current == 30 * kMiB + 512);
  CHECK(a.address(a.malloc(30 * kMiB, 2, 7)) == 0);
  (void)second;
}

TEST_CASE("an event behind one that has not completed is not seen") {
  CachingAllocator a;
  const auto early = a.malloc(30 * kMiB, 1, 0), late = a.malloc(30 * kMiB, 1, 0);
  a.record_stream(early, 0);
  a.record_stream(late, 0);
  a.free(late, std::array{9.0});
  a.free(early, std::array{5.0});
  (void)a.malloc(30 * kMiB, 1, 8);
  CHECK(a.stats().reserved.current == 90 * kMiB);
  a.finish_all();
  CHECK(a.address(a.malloc(30 * kMiB, 1, 8)) == 0);
}

TEST_CASE(
    "a device that is full: whole free segments are given back and the request is tried again; then it is out of "
    "memory") {
  CachingAllocator a({.capacity = 100 * kMiB});
  const auto first = a.malloc(40 * kMiB, 0, 0), second = a.malloc(40 * kMiB, 0, 0), small = a.malloc(100, 0, 0);
  a.free(first);
  // 82 of 100 MiB are reserved; 50 do not fit, without the free 40 they do.
  const auto third = a.malloc(50 * kMiB, 0, 0);
  REQUIRE(third != CachingAllocator::kNone);
  CHECK(a.stats().retries == 1);
  CHECK(a.stats().reserved.current == 92 * kMiB);
  CHECK(a.stats().reserved.peak == 92 * kMiB);
  // Nothing is free as a whole segment: 10 MiB more do not fit into 8, with a retry or without.
  CHECK(a.malloc(10 * kMiB, 0, 0) == CachingAllocator::kNone);
  CHECK(a.stats().retries == 2);
  CHECK(a.stats().out_of_memory == 1);
  CHECK(a.out_of_memory().bytes == 10 * kMiB);
  CHECK(a.out_of_memory().allocated == 90 * kMiB + 512);
  CHECK(a.out_of_memory().reserved == 92 * kMiB);
  // The device gave 40, 40, 2, got 40, gave 50.
  CHECK(a.changes() ==
        std::vector<SegmentChange>{
            {0, 40 * kMiB}, {40 * kMiB, 40 * kMiB}, {80 * kMiB, 2 * kMiB}, {0, -40 * kMiB}, {82 * kMiB, 50 * kMiB}});
  for (const auto h : {second, small, third}) a.free(h);
  a.empty_cache();
  CHECK(a.stats().reserved.current == 0);
  CHECK(a.stats().segments == 0);
}

TEST_CASE("a retry waits for recorded streams: their blocks can be given back too") {
  CachingAllocator a({.capacity = 100 * kMiB});
  const auto block = a.malloc(60 * kMiB, 1, 0);
  a.record_stream(block, 0);
  a.free(block, std::array{1e9});
  CHECK(a.malloc(80 * kMiB, 0, 1) != CachingAllocator::kNone);
  CHECK(a.stats().retries == 1);
  CHECK(a.stats().active.current == 80 * kMiB);
}

TEST_CASE("blocks of max_split_size are not split, nor lent to small requests, nor to much smaller large ones") {
  CachingAllocator a({.capacity = 400 * kMiB, .max_split_size = 64 * kMiB});
  a.free(a.malloc(100 * kMiB, 0, 0));
  // 30 MiB < 64: may not have it. 70 MiB: 100 >= 70 + 20: may not either. 81 MiB: may, and gets all of it.
  const auto small = a.malloc(30 * kMiB, 0, 0), oversize = a.malloc(70 * kMiB, 0, 0), near = a.malloc(81 * kMiB, 0, 0);
  CHECK(a.size(small) == 30 * kMiB);
  CHECK(a.size(oversize) == 70 * kMiB);
  CHECK(a.address(near) == 0);
  CHECK(a.size(near) == 100 * kMiB);
  CHECK(a.stats().reserved.current == 200 * kMiB);
}

TEST_CASE(
    "a full device gives back oversize blocks before everything: one that is large enough, else the largest ones") {
  CachingAllocator a({.capacity = 300 * kMiB, .max_split_size = 64 * kMiB});
  std::vector<CachingAllocator::Handle> blocks;
  for (const std::int64_t size : {120, 90, 70}) blocks.push_back(a.malloc(size * kMiB, 0, 0));
  for (const auto h : blocks) a.free(h);
  // 280 of 300 are reserved. 95 MiB: 120 >= 95 + 20 may not serve it, but is given back for it: 280 - 120 + 96
  // (rounded).
  (void)a.malloc(95 * kMiB, 0, 0);
  CHECK(a.stats().reserved.current == (90 + 70 + 96) * kMiB);
  CHECK(a.stats().retries == 0);
  // 130 MiB: no single block; the largest, 90, and then 70 make 160 >= 130.
  (void)a.malloc(130 * kMiB, 0, 0);
  CHECK(a.stats().reserved.current == (96 + 130) * kMiB);
  CHECK(a.stats().retries == 0);
}

TEST_CASE("a process may have less than the device: the limit is on what a new segment would make") {
  CachingAllocator a({.capacity = 400 * kMiB, .allowed = 100 * kMiB});
  a.free(a.malloc(60 * kMiB, 0, 0));
  CHECK(a.malloc(70 * kMiB, 0, 0) != CachingAllocator::kNone);  // the 60 had to go
  CHECK(a.stats().retries == 1);
  CHECK(a.malloc(32 * kMiB, 0, 0) == CachingAllocator::kNone);
}

TEST_CASE("garbage collection gives back old free segments above its threshold") {
  // Threshold 0.5 of 200 MiB allowed = 100 MiB.
  CachingAllocator a({.allowed = 200 * kMiB, .garbage_collection_threshold = 0.5});
  const auto old = a.malloc(40 * kMiB, 0, 0);
  a.free(old);                               // search 1 was for it: born at 1
  const auto b = a.malloc(50 * kMiB, 0, 0);  // search 2
  const auto c = a.malloc(44 * kMiB, 0, 0);  // search 3; 134 MiB reserved
  a.free(c);                                 // born at 3
  // Search 4 for 60 MiB: ages 3 and 1, average 2: only the older is given back: 134 - 40 = 94 <= 100.
  (void)a.malloc(60 * kMiB, 0, 0);
  CHECK(a.stats().reserved.current == (50 + 44 + 60) * kMiB);
  CHECK(a.stats().retries == 0);
  (void)b;
}

TEST_CASE("expandable segments: pages are mapped at the lowest address that fits, whole free pages can be unmapped") {
  CachingAllocator a({.capacity = 100 * kMiB, .expandable_segments = true});
  // Pages of 20 MiB: 30 MiB need two; the 10 left serve the next 10.
  const auto first = a.malloc(30 * kMiB, 0, 0), second = a.malloc(10 * kMiB, 0, 0);
  CHECK(a.stats().reserved.current == 40 * kMiB);
  CHECK(a.address(second) == 30 * kMiB);
  const auto third = a.malloc(25 * kMiB, 0, 0);  // 40 .. 65 of pages up to 80
  CHECK(a.stats().reserved.current == 80 * kMiB);
  a.free(first);
  // 0 .. 30 is free and so is 65 .. 80, which can grow: 15 MiB go into the hole, whose room is smaller.
  const auto hole = a.malloc(15 * kMiB, 0, 0);
  CHECK(a.address(hole) == 0);
  a.free(hole);
  // 35 MiB: 65 .. 80 grows by a page to 100.
  const auto grown = a.malloc(35 * kMiB, 0, 0);
  CHECK(a.address(grown) == 65 * kMiB);
  CHECK(a.stats().reserved.current == 100 * kMiB);
  // 2 MiB for the small pool: none left. Page 0 .. 20 lies inside the free 0 .. 30: unmapped, a retry.
  const auto small = a.malloc(1000, 0, 0);
  REQUIRE(small != CachingAllocator::kNone);
  CHECK(a.stats().retries == 1);
  CHECK(a.stats().reserved.current == 82 * kMiB);
  // 28 MiB would fit between 0 and 30 if the page could be mapped again; 18 MiB are left.
  CHECK(a.malloc(28 * kMiB, 0, 0) == CachingAllocator::kNone);
  for (const auto h : {second, third, grown, small}) a.free(h);
  a.empty_cache();
  CHECK(a.stats().reserved.current == 0);
  CHECK(a.blocks().empty());
}

TEST_CASE("activations that grow: segments are wasted, a range is not") {
  // Each round frees 8 blocks and asks for 8 that are 1 MiB larger: no segment is large enough, all are new. In a range
  // the freed neighbours are one block and only what is more is mapped: 8 * 40 MiB, to a page.
  const auto reserved = [](bool expandable) {
    CachingAllocator a({.expandable_segments = expandable});
    std::vector<CachingAllocator::Handle> live;
    for (std::int64_t round = 0; round < 11; ++round) {
      for (const auto h : live) a.free(h);
      live.clear();
      for (int i = 0; i < 8; ++i) live.push_back(a.malloc((30 + round) * kMiB, 0, 0));
    }
    return a.stats().reserved.peak;
  };
  CHECK(reserved(true) == 8 * 40 * kMiB);
  // 30; 31 and 32 in segments of 32; ... 39 and 40 in 40: even sizes fit into the segments of the odd ones before them.
  CHECK(reserved(false) == 8 * (30 + 32 + 34 + 36 + 38 + 40) * kMiB);
}

// --- Laws, on random sequences ---

namespace {

void check_laws(const CachingAllocator& a, const AllocatorSettings& settings) {
  std::int64_t allocated = 0, active = 0, requested = 0, reserved = 0, split = 0, segments = 0, segment_free = 0,
               in_segment = 0;
  const std::vector<BlockView> blocks = a.blocks();
  const auto end_segment = [&] {
    if (in_segment > 1) split += segment_free;
    segment_free = in_segment = 0;
  };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const BlockView& b = blocks[i];
    REQUIRE(b.bytes > 0);
    REQUIRE(b.requested <= b.bytes);
    if (b.first) end_segment();
    // Blocks lie side by side, and two free neighbours would have merged.
    if (!b.first) REQUIRE(blocks[i - 1].address + blocks[i - 1].bytes == b.address);
    if (i > 0) REQUIRE(blocks[i - 1].address + blocks[i - 1].bytes <= b.address);
    if (!b.first && b.state == blocks[i - 1].state)
      REQUIRE((b.state == BlockState::allocated || b.state == BlockState::waiting));
    segments += b.first && !b.expandable ? 1 : 0;
    ++in_segment;
    allocated += b.state == BlockState::allocated ? b.bytes : 0;
    active += b.state == BlockState::allocated || b.state == BlockState::waiting ? b.bytes : 0;
    reserved += b.state == BlockState::unmapped ? 0 : b.bytes;
    segment_free += b.state == BlockState::free && !b.expandable ? b.bytes : 0;
    requested += b.requested;
  }
  end_segment();
  const AllocatorStats& s = a.stats();
  REQUIRE(s.allocated.current == allocated);
  REQUIRE(s.active.current == active);
  REQUIRE(s.requested.current == requested);
  REQUIRE(s.reserved.current == reserved);
  REQUIRE(s.inactive_split.current == split);
  REQUIRE(s.segments == segments);
  REQUIRE(reserved <= settings.capacity);
  REQUIRE(s.requested.peak <= s.active.peak);
  REQUIRE(s.allocated.peak <= s.active.peak);
  REQUIRE(s.active.peak <= s.reserved.peak);
  std::int64_t given = 0;
  for (const SegmentChange& c : a.changes()) given += c.bytes;
  REQUIRE(given == reserved);
}

AllocatorSettings random_settings(std::mt19937_64& random) {
  AllocatorSettings s;
  s.capacity = random() % 2 ? kNoLimit : static_cast<std::int64_t>(200 + random() % 600) * kMiB;
  s.expandable_segments = random() % 2;
  if (random() % 4 == 0) s.max_split_size = 40 * kMiB;
  if (random() % 4 == 0) s.roundup_power2_divisions = 8;
  if (s.capacity != kNoLimit && random() % 3 == 0) s.allowed = s.capacity / 2, s.garbage_collection_threshold = 0.6;
  return s;
}

void check_random_sequence(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const AllocatorSettings settings = random_settings(random);
  CachingAllocator a(settings);
  std::vector<CachingAllocator::Handle> live;
  for (int i = 0; i < 300; ++i) {
    const double now = i;
    if (live.empty() || random() % 5 < 3) {
      const auto bytes = static_cast<std::int64_t>(1 + random() % (std::uint64_t{1} << (6 + random() % 21)));
      const auto h = a.malloc(bytes, static_cast<int>(random() % 3), now);
      if (h == CachingAllocator::kNone) continue;
      REQUIRE(a.size(h) >= bytes);
      if (random() % 4 == 0) a.record_stream(h, static_cast<int>(random() % 3));
      live.push_back(h);
    } else {
      const std::size_t which = random() % live.size();
      const double end = now + static_cast<double>(random() % 20);
      a.free(live[which], std::array{end, end + 1, end + 2});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    }
    check_laws(a, settings);
  }
  for (const auto h : live) a.free(h, std::array{301.0, 301.0, 301.0});
  REQUIRE(a.malloc(512, 2, 1000) != CachingAllocator::kNone);
  check_laws(a, settings);
  CHECK(a.stats().active.current == 512);
  // Everything is freed but those 512 bytes: a segment is one free block, but for that one (two); what is given back is
  // all but that.
  std::int64_t not_whole = 0;
  const std::vector<BlockView> blocks = a.blocks();
  for (std::size_t i = 0; i < blocks.size(); ++i) not_whole += !blocks[i].expandable && !blocks[i].first;
  CHECK(not_whole <= 1);
  a.empty_cache();
  CHECK(a.stats().reserved.current <= 2 * kMiB);
}

}  // namespace

TEST_CASE("blocks tile their segments, counters are sums, what is freed comes back whole") {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    check_random_sequence(seed);
  }
}
