// One operation that belongs to no training, for a backend's own kernel (Device::launch_kernel): a Program of that
// operation alone. For calibrate/ alone.
#pragma once

#include <memory>
#include <vector>

#include "executor/actions/kernel_call.h"
#include "executor/calibrate/ops.h"

namespace fsdp {

class LoneCall {
 public:
  // Forward or backward of an op. `buffers`: as many as the operation has arguments.
  [[nodiscard]] static LoneCall of_op(const OpCase&, bool backward, DType, std::size_t buffers);
  // What a unit of one parameter of n elements on one rank does. `accumulate`: the buffer that is added to, or none.
  [[nodiscard]] static LoneCall of_unit(Action, std::int64_t n, DType compute, DType reduce, DType master,
                                        std::size_t buffers, int accumulate = -1);

  // Puts it on the compute stream. The call is kept alive until the device has run it.
  void launch(Device&, std::int32_t op, std::vector<BufferView>) const;

 private:
  struct Parts {
    ModelGraph model;
    ShardingPlan plan;
    Program program;
    Training training;
    Operation op;
    std::vector<Arg> args;
  };
  [[nodiscard]] static std::shared_ptr<Parts> make(Action, DType compute, DType reduce, DType master,
                                                   std::size_t buffers);
  explicit LoneCall(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  std::shared_ptr<const Parts> parts_;
};

}  // namespace fsdp
