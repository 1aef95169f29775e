// How micro-benchmarks are timed: operations go through a real Device, in batches, on every rank at once. For
// calibrate/ alone.
//
// What is timed is the period of operations that follow one another on a stream: the kernel, the stream's hand-over to
// the next one, and what issuing takes away from the rank's core. That is what an operation costs in a run.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/backend.h"

namespace fsdp {

// Memory of one benchmark on one rank: handed out from the start of the arena, never given back, filled with small
// numbers.
class BenchMemory {
 public:
  BenchMemory(Device& device, const Implementation& kernels) : device_(device), kernels_(kernels) {}
  [[nodiscard]] BufferView take(std::int64_t elements, DType type);  // values within 1/64
  [[nodiscard]] BufferView take_ids(std::int64_t elements, std::int64_t below);
  [[nodiscard]] Device& device() { return device_; }
  [[nodiscard]] const Implementation& implementation() const { return kernels_; }

 private:
  [[nodiscard]] BufferView raw(std::int64_t bytes);
  Device& device_;
  const Implementation& kernels_;
  std::int64_t used_ = 0;
};

// Issues the i-th operation of a batch (or the i-th round of several); takes operation indices from `op`.
using Issue = std::function<void(Device&, std::int32_t& op, int i)>;
// Called once on every rank: takes memory and returns what to repeat.
using Setup = std::function<Issue(BenchMemory&)>;

struct Timer {
  Backend& backend;
  std::int64_t arena_bytes = 0;
  double seconds_per_benchmark = 0.05;
  // Seconds per round: the median over batches of the mean over ranks. With more ranks than cores, batches are long, so
  // that ranks take turns in them as in a run, with caches that another rank has used; and what a batch takes of the
  // cores' time, spread over all cores, is the least. What ranks wait for each other there is the skew of collectives
  // (threads.h).
  [[nodiscard]] double time(const Setup&) const;
  // What the instruments of every rank say of one round; nothing is timed.
  [[nodiscard]] std::vector<std::vector<OperationRecord>> one_round(const Setup&) const;
};

// How many sets of buffers of `bytes` each a benchmark goes round. What a forward kernel reads was mostly written a
// moment ago (warm: beyond the innermost cache); weights, what was saved for backward, shards, optimizer states and the
// buffers of collectives were last touched a unit or a step ago (cold: beyond all caches).
enum class Reuse : std::uint8_t { warm, cold };
[[nodiscard]] int buffer_sets(std::int64_t bytes, Reuse);

}  // namespace fsdp
