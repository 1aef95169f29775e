// Stands in for executor/cuda/toolkit/stream_kernels.cpp and the kernels behind it: the host's kernels, which see
// the same memory, in the order of the stream.
#include <functional>
#include <memory>
#include <vector>

#include "executor/cuda/toolkit/kernels/stream_kernels.h"

void push_on_stream(CUstream_st*, std::function<void()>);

namespace fsdp::cuda {

std::function<void(const Operation&)>& kernel_hook() {
  static std::function<void(const Operation&)> hook;
  return hook;
}

// Programs are lowered for native-cuda; the host's kernels take scratch of another size.
void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext&) {
  if (kernel_hook()) kernel_hook()(call.op);
  const Action action = call.op.action;
  if (action != Action::forward && action != Action::recompute && action != Action::backward)
    return push_on_stream(stream, make_kernel(call));
  const Op& op = call.model.ops.at(static_cast<std::size_t>(call.op.graph_op));
  if (op.shape.vocab_parts > 1 && op.kind == OpKind::cross_entropy)  // its statistic, which is reduced
    return push_on_stream(stream, make_kernel(call));
  const Workload work{call.plan.micro_batches.at(static_cast<std::size_t>(call.op.micro_batch)), call.plan.seq_len,
                      size_of(call.plan.param_dtype)};
  const OpFacts f = facts(native_implementation(), op, work);
  const bool backward = action == Action::backward;
  auto scratch = std::make_shared<std::vector<std::byte>>(
      static_cast<std::size_t>(backward ? f.backward_scratch_bytes : f.forward_scratch_bytes));
  KernelCall with = call;
  const std::size_t before =
      op.inputs.size() + op.params.size() + op.outputs.size() * (backward ? 2 : 1);  // and the extra
  with.views.at(before + 1) = {scratch->data(), static_cast<std::int64_t>(scratch->size())};
  push_on_stream(stream, [scratch, body = make_kernel(with)] { body(); });
}

}  // namespace fsdp::cuda
