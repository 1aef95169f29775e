// What PyTorch's allocator would reserve for a Program: its allocations and frees in host order, through
// simulator/allocator/allocator.h.
//
//   const AllocatorPrediction p = replay_allocator(program, {.settings = {.capacity = limit - fixed}});
//   p.peak_reserved, p.retries, p.out_of_memory
//
// The tensors of a Program are what PyTorch allocates, with one difference that is undone here: parameter shards and
// optimizer states, one buffer per unit there, are one tensor per parameter in FSDP2 and DDP (FSDP1: one per unit).
// Buffers in host memory and buffers of no bytes are left out. Blocks of other streams' pools are the pool's
// (Buffer::pool).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/cluster.h"
#include "planner/program.h"
#include "planner/timeline.h"
#include "simulator/allocator/allocator.h"

namespace fsdp {

struct FixedAllocation {  // made before init and never freed: a library's workspace
  std::int64_t bytes = 0;
  Stream stream = Stream::compute;
};

// What PyTorch allocates for cuBLAS on the stream that multiplies, once for the thread of forward and once for that of
// autograd, which have a handle each: 32 MiB on Hopper and later (":4096:8", eight pieces of 4 MiB), 8 MiB and 128 KiB
// before (":4096:2:16:8"). Records of one H200 hold 64 MiB.
[[nodiscard]] std::array<FixedAllocation, 2> cublas_workspaces(const GpuSpec&);

struct AllocatorPlace {
  int step = 0;                         // 0 init, 1 first, 2 and up: steady steps
  std::optional<std::int32_t> op = {};  // in that step; empty: before the first operation
  friend bool operator==(const AllocatorPlace&, const AllocatorPlace&) = default;
};

// What the allocator did, in order. `released`: the host frees a block; `freed`: it can be used again, which is later
// where other streams still use it.
struct AllocatorRecord {
  enum class What : std::uint8_t { segment_taken, segment_given_back, allocated, released, freed };
  What what{};
  std::int64_t address = 0, bytes = 0;  // of a block: as asked for
  int stream = 0;
  std::int32_t buffer = -1;  // -1: a segment, or an allocation that is no buffer
  AllocatorPlace place = {};
  friend bool operator==(const AllocatorRecord&, const AllocatorRecord&) = default;
};
struct AllocatorHistory {
  std::vector<AllocatorRecord> records;
  std::vector<BlockView> blocks;  // at the end, by address
  bool expandable = false;        // segments grow and shrink
};

struct ReplayOptions {
  AllocatorSettings settings = {};
  std::span<const FixedAllocation> fixed = {};
  // When operations were issued and ended: a buffer with recorded streams comes back when the last operation issued on
  // each of them before its free has ended, at the first malloc that the host reaches after that. Without times
  // (nullptr, or no `issued`) it comes back when the step has ended: the most that can be held.
  const Timeline* first_step = nullptr;
  const Timeline* steady_step = nullptr;
  int steady_steps = 3;  // at most; a step that begins as the one before began is not replayed again
  std::span<const Timeline> steady_times = {};  // instead of steady_step: of one step after the other, over and over
  AllocatorHistory* history = nullptr;          // filled, where given
};

struct AllocatorPrediction {  // bytes
  std::int64_t peak_allocated = 0, peak_requested = 0, peak_active = 0, peak_reserved = 0;
  AllocatorPlace at;  // where reserved was highest first, and what it was made of then:
  std::int64_t allocated = 0, active = 0;
  std::int64_t inactive_split = 0;                  // free parts of segments in use (0 with expandable segments)
  std::int64_t retries = 0, retries_per_step = 0;   // of all steps; of the last one
  std::vector<std::int64_t> retries_of_steps = {};  // of each steady step that was replayed
  std::int64_t segments = 0;                        // at the end
  bool out_of_memory = false;  // then the replay ended at `failed`, and the peaks are those until then
  AllocatorPlace failed;
  OutOfMemory failure;
  int steady_steps_replayed = 0;
};

// Throws InternalError for a program that allocates what is live or frees what is not.
[[nodiscard]] AllocatorPrediction replay_allocator(const Program&, const ReplayOptions& = {});

// The bytes of the tensors that PyTorch makes where the program has this one buffer.
[[nodiscard]] std::vector<std::int64_t> tensors_of(const Buffer&, const Program&);

}  // namespace fsdp
