// Collectives over the mesh's tensor dimension: PyTorch's functional ones. Each starts on a stream of its communicator
// when what the compute stream holds by then has finished; what reads the result waits for it, and only then the
// tensors that it reads are let go. Before PyTorch 2.8 they were marked by record_stream instead, unless
// TORCH_NCCL_AVOID_RECORD_STREAMS was set: freed at once, and used again when the collective has run.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "planner/lowering/step/step_builder.h"

namespace fsdp {

class OverTensor {
 public:
  explicit OverTensor(bool records) : records_(records) {}

  // `held`: buffers that are freed when somebody has waited. The last argument is the result.
  void issue(StepBuilder& b, Operation o, std::span<const Arg> args, std::vector<std::int32_t> held) {
    o.stream = Stream::tensor;
    o.comm = Communicator::tensor;
    b.wait(Stream::tensor, b.last(Stream::compute));
    const std::int32_t op = b.issue(o, args);
    if (records_) {
      for (const Arg& a : args) b.record(a.buffer, Stream::tensor);
      for (const std::int32_t buffer : std::exchange(held, {})) b.release(buffer);
    }
    running_.push_back({op, args.back().buffer, std::move(held)});
  }

  // Waited for at once.
  static void issue_and_wait(StepBuilder& b, Operation o, std::span<const Arg> args) {
    o.stream = Stream::tensor;
    o.comm = Communicator::tensor;
    b.wait(Stream::tensor, b.last(Stream::compute));
    b.wait(Stream::compute, b.issue(o, args));
  }

  // The compute stream is about to use the buffer.
  void wait_for(StepBuilder& b, std::int32_t buffer) {
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].result != buffer) continue;
      b.wait(Stream::compute, running_[i].op);
      for (const std::int32_t held : running_[i].held) b.release(held);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
  }

  void end_micro_batch();

 private:
  struct Running {
    std::int32_t op = kNone, result = kNone;
    std::vector<std::int32_t> held;
  };
  bool records_ = false;
  std::vector<Running> running_;  // and nobody has waited: one or two
};

}  // namespace fsdp
