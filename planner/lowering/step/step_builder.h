// Stage three of lowering: streams, events and buffers. A dialect calls the builder in host order; the builder fills
// the Step.
//
//   int32 op = b.issue({.action = Action::all_gather, .stream = Stream::all_gather, ...}, args);
//   b.wait(Stream::compute, op);              // the next operation on the compute stream starts after it
//   b.release(buffer);                        // at this point of host order
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/program.h"

namespace fsdp {

// An operation on a stream, its argument lists still empty.
[[nodiscard]] inline Operation operation(Action action, Stream stream = Stream::compute, std::int32_t unit = kNone,
                                         std::int16_t micro_batch = 0) {
  Operation o;
  o.action = action;
  o.stream = stream;
  o.unit = unit;
  o.micro_batch = micro_batch;
  return o;
}

class StepBuilder {
 public:
  StepBuilder(Program& program, Step& step) : program_(program), step_(step) {}

  [[nodiscard]] std::int32_t declare(const Buffer& buffer) {
    program_.buffers.push_back(buffer);
    return static_cast<std::int32_t>(program_.buffers.size()) - 1;
  }
  // One more buffer like another.
  [[nodiscard]] std::int32_t declare_as(std::int32_t buffer) {
    return declare(Buffer(program_.buffers[static_cast<std::size_t>(buffer)]));
  }

  // Allocates for the next operation that is issued.
  void allocate(std::int32_t buffer) { pending_allocs_.push_back(buffer); }
  [[nodiscard]] std::int32_t allocate_new(const Buffer& buffer) {
    const std::int32_t id = declare(buffer);
    allocate(id);
    return id;
  }

  // Within the next operation that is issued, in the order of these calls.
  void allocate_inside(std::int32_t buffer) { pending_inner_.push_back(buffer); }
  void release_inside(std::int32_t buffer) { pending_inner_.push_back(~buffer); }

  // Frees after the last operation that was issued.
  void release(std::int32_t buffer) {
    step_.frees.push_back(buffer);
    ++step_.ops.back().frees.count;
  }

  // When the buffer is freed PyTorch marks it for this stream, too (Buffer::recorded_streams); its own needs no mark.
  void record(std::int32_t buffer, Stream stream) {
    Buffer& info = program_.buffers[static_cast<std::size_t>(buffer)];
    if (info.pool != stream)
      info.recorded_streams = static_cast<std::uint8_t>(info.recorded_streams | (1U << static_cast<unsigned>(stream)));
  }

  // `stream`'s next operation starts after operation `op` (of this step) has finished; kNone: nothing to wait for.
  void wait(Stream stream, std::int32_t op);
  // ... after operation `op` of the step before.
  void wait_for_step_before(Stream stream, std::int32_t op) {
    pending_waits_[static_cast<std::size_t>(stream)].push_back(-1 - op);
  }
  // ... after everything that `source` holds so far and everything that its own next operation would wait for.
  void wait_stream(Stream stream, Stream source);

  std::int32_t issue(const Operation& header, std::span<const Arg> args);

  // The host goes on only when these operations have finished (-1 - i: operation i of the step before). None: no
  // operation is issued.
  void host_wait(std::span<const std::int32_t> ops, std::int16_t micro_batch);

  [[nodiscard]] Step& step() { return step_; }
  // Index of the next operation to be issued, and of the last one of a stream (kNone: it has none).
  [[nodiscard]] std::int32_t next() const { return static_cast<std::int32_t>(step_.ops.size()); }
  [[nodiscard]] std::int32_t last(Stream stream) const { return last_[static_cast<std::size_t>(stream)]; }

 private:
  Program& program_;
  Step& step_;
  std::vector<std::int32_t> pending_allocs_, pending_inner_;
  std::array<std::vector<std::int32_t>, kStreams> pending_waits_;
  using ByStream = std::array<std::int32_t, kStreams>;
  static ByStream none_by_stream() {
    ByStream none;
    none.fill(kNone);
    return none;
  }
  static std::array<ByStream, kStreams> nothing_known() {
    std::array<ByStream, kStreams> nothing;
    nothing.fill(none_by_stream());
    return nothing;
  }
  ByStream last_ = none_by_stream();
  std::array<ByStream, kStreams> known_ = nothing_known();  // [waiter][source]: latest operation known to have finished
};

}  // namespace fsdp
