// In place of the .cu files: the same work in the order of the stream. Kernels of operations are those of the host, which see the same memory.
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "executor/cuda/machine/occupy.h"
#include "executor/cuda/machine/reduce.h"
#include "executor/cuda/run_kernels.h"
#include "executor/kernels/element.h"

void push_on_stream(CUstream_st*, std::function<void()>);

namespace fsdp::cuda {

Combine combine_of(ReductionKind kind) { return static_cast<Combine>(kind); }

void enqueue_reduction(DType type, Reduction reduction, const Inputs& inputs, int n, std::int64_t count, std::byte* output, CUstream_st* stream) {
  push_on_stream(stream, [=] {
    with_type(type, [&](auto element) {
      using T = decltype(element);
      for (std::int64_t i = 0; i < count; ++i)
        reinterpret_cast<T*>(output)[i] = reduce_element<T>(combine_of(reduction.kind), reduction.multiply, inputs, n, i);
    });
  });
}

void preload_reductions(CUstream_st*) {}

void enqueue_occupation(const Occupation& o, CUstream_st* stream) {
  push_on_stream(stream, [=] { std::this_thread::sleep_for(std::chrono::nanoseconds(o.nanoseconds)); });
}

std::function<void(const Operation&)>& kernel_hook() {
  static std::function<void(const Operation&)> hook;
  return hook;
}

// Programs are lowered for native-cuda; the host's kernels take scratch of another size.
void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext&) {
  if (kernel_hook()) kernel_hook()(call.op);
  const Action action = call.op.action;
  if (action != Action::forward && action != Action::recompute && action != Action::backward) return push_on_stream(stream, make_kernel(call));
  const Op& op = call.model.ops.at(static_cast<std::size_t>(call.op.graph_op));
  const Workload work{call.plan.micro_batches.at(static_cast<std::size_t>(call.op.micro_batch)), call.plan.seq_len, size_of(call.plan.param_dtype)};
  const OpFacts f = facts(native_implementation(), op, work);
  const bool backward = action == Action::backward;
  auto scratch = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(backward ? f.backward_scratch_bytes : f.forward_scratch_bytes));
  KernelCall with = call;
  const std::size_t before = op.inputs.size() + op.params.size() + op.outputs.size() * (backward ? 2 : 1);  // and the extra
  with.views.at(before + 1) = {scratch->data(), static_cast<std::int64_t>(scratch->size())};
  push_on_stream(stream, [scratch, body = make_kernel(with)] { body(); });
}

}  // namespace fsdp::cuda
