// Interprets the Steps of one rank's Program on a Device. For training/ alone.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "executor/actions/kernel_call.h"
#include "executor/backend.h"
#include "executor/training_inputs.h"
#include "models/graph.h"
#include "planner/plan.h"
#include "planner/program.h"
#include "planner/timeline.h"

namespace fsdp {

// What the instruments saw of one step.
struct StepRecord {
  std::vector<OperationRecord> operations;  // in order of start per stream
  MemoryTimeline memory;
  double end = 0;      // of the last operation, seconds
  double seconds = 0;  // from when the host began the step, its streams idle, until it saw them idle again
  double loss = 0;     // of steps that read it
};

using KernelHook = std::function<void(const Operation&, std::int64_t rank)>;  // see RunOptions::in_kernel

class Interpreter {
 public:
  // References are kept.
  Interpreter(const ModelGraph&, const ShardingPlan&, const Program&, const Training&, Device&, const KernelHook&);

  // `index` of the training step, from 0 (it decides the data and the learning rate); init: any. `before` is called on
  // the host before each operation is issued (may be empty). Throws RankFailure when the program asks for what cannot
  // be.
  [[nodiscard]] StepRecord run(const Step&, std::int64_t index,
                               const std::function<void(const Operation&)>& before = {});

  [[nodiscard]] BufferView view(std::int32_t buffer) const;  // throws InternalError if it is not allocated
  [[nodiscard]] Device& device() { return device_; }

 private:
  void allocate(std::span<const std::int32_t> buffers);
  void release(std::span<const std::int32_t> buffers);
  void take_back(bool all);
  void issue(const Step&, std::int32_t index, StepRecord&);
  [[nodiscard]] Comm comm_of(const Operation&) const;
  void issue_collective(const Operation&, std::int32_t index, std::span<const Arg>, std::span<const BufferView>);
  void issue_over_tensor(const Step&, std::int32_t index, std::span<const BufferView>);
  void wait_on_host(std::span<const std::int32_t> operations);
  [[nodiscard]] std::int64_t gather_group(const Operation&, std::span<const Arg>) const;
  [[nodiscard]] KernelCall call(const Step&, const Operation&, std::vector<BufferView>) const;
  void read_loss(const Operation&, BufferView loss, StepRecord&);
  [[nodiscard]] std::vector<BufferView> views(std::span<const Arg>) const;

  // A block that was freed and goes back once these operations have finished (Buffer::recorded_streams).
  struct WaitingBlock {
    Stream pool{};
    BufferView view;
    std::array<std::int32_t, kStreams> until{};  // -1: nothing to wait for
  };

  const ModelGraph& model_;
  const ShardingPlan& plan_;
  const Program& program_;
  const Training& training_;
  Device& device_;
  const KernelHook& hook_;
  std::vector<BufferView> live_;             // by buffer; data null: not allocated
  std::vector<std::int64_t> gathered_over_;  // by (gather) buffer: ranks of its group
  std::vector<char> launched_;               // by operation of this step: it runs on a stream
  std::vector<std::int32_t> waits_;          // of the operation being issued
  std::vector<WaitingBlock> waiting_;        // in order of their frees
  std::vector<std::int16_t> reduced_in_;     // by unit: the micro-batch of this step whose gradient was reduced last
  std::array<std::int32_t, kStreams> last_{};
  std::int64_t step_ = 0;
};

// Communicators of a plan that are named with a size, each once: over the small groups of integer reshards, and of
// units with a mesh of their own.
[[nodiscard]] std::vector<Comm> sized_communicators(const ShardingPlan&);

}  // namespace fsdp
