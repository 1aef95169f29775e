// A memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot), as far as a prediction can be compared with it: how
// high allocated and reserved bytes rose while the allocator's history was recorded, and what they were for.
//
//   const RecordedMemory m = read_snapshot(read_file("snapshot.pickle"), "snapshot.pickle");
//   m.peak_allocated, m.at_peak[static_cast<std::size_t>(RecordedPart::activations)]
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "planner/program.h"

namespace fsdp {

// What stacks of calls can tell apart. Gradients of parameters and of activations are allocated by the same kernels.
enum class RecordedPart : std::uint8_t {
  parameter_shards,
  optimizer_states,
  reduce,  // inputs and outputs of reduce-scatters, sharded gradients
  gather,  // outputs of all-gathers, shards cast for them
  unsharded,
  activations,  // activations, gradients before they are reduced, temporaries
  other,        // the batch, workspaces, what was allocated where no stack was recorded
};
inline constexpr int kRecordedParts = static_cast<int>(RecordedPart::other) + 1;
[[nodiscard]] std::string_view name(RecordedPart);
[[nodiscard]] RecordedPart recorded_part(BufferKind);

struct RecordedMemory {
  std::int64_t device = 0;           // the one that reserved most
  std::int64_t peak_allocated = 0;   // bytes that were asked for, not rounded, as in a prediction
  std::int64_t peak_reserved = 0;    // bytes taken from the device
  std::int64_t allocated_first = 0;  // when the history begins
  bool history = false;              // allocations were recorded; else both peaks are those of the moment of the dump
  bool stacks = false;               // some allocation says where it was made; else at_peak is all `other`
  std::int64_t out_of_memory = 0;    // times that the allocator found none
  std::array<std::int64_t, kRecordedParts> at_peak{};
  std::string peak_at;  // "forward (train.py:33)": who asked for the bytes that made the peak; empty: not recorded
};

// Throws InputError, for what is not such a file and for one whose history contradicts its segments.
[[nodiscard]] RecordedMemory read_snapshot(std::string_view bytes, std::string_view where);

}  // namespace fsdp
