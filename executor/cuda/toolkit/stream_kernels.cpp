#include "executor/cuda/toolkit/kernels/stream_kernels.h"

#include <cuda_runtime_api.h>

#include <array>
#include <vector>

#include "executor/cuda/attention_call.h"
#include "executor/cuda/matmul_shape.h"
#include "executor/cuda/toolkit/device/check.h"
#include "executor/cuda/toolkit/device/libraries.h"
#include "executor/cuda/toolkit/kernels/attention/attention.h"
#include "executor/cuda/toolkit/kernels/launches.h"
#include "executor/cuda/toolkit/kernels/matmul/matmul_runner.h"
#include "models/implementations/native_cuda.h"
#include "models/input/error.h"

namespace fsdp::cuda {
namespace {

// Pinned memory for one batch on its way; free again when its event has passed.
class Staging {
 public:
  Staging() { check(cudaEventCreateWithFlags(&passed_, cudaEventDisableTiming), -1, "making an event"); }
  ~Staging() {
    if (data_ != nullptr) cudaFreeHost(data_);
    cudaEventDestroy(passed_);
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Waits until what used it last has been copied.
  std::byte* take(std::int64_t bytes) {
    check(cudaEventSynchronize(passed_), -1, "waiting for a batch");
    if (bytes > bytes_) {
      if (data_ != nullptr) check(cudaFreeHost(data_), -1, "freeing pinned memory");
      data_ = nullptr, bytes_ = 0;
      check(cudaMallocHost(&data_, static_cast<std::size_t>(bytes)), -1, "pinned memory for a batch");
      bytes_ = bytes;
    }
    return static_cast<std::byte*>(data_);
  }
  void used_by(StreamHandle stream) { check(cudaEventRecord(passed_, stream), -1, "recording an event"); }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
  cudaEvent_t passed_ = nullptr;
};

struct Memory {
  Memory() {
    check(cudaMalloc(&norms, static_cast<std::size_t>(norm_scratch_bytes())), -1, "memory for partial norms");
  }
  ~Memory() { cudaFree(norms); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Staging& next_staging() { return staging[turn++ % staging.size()]; }

  void* norms = nullptr;
  std::array<Staging, 4> staging;  // so many micro-batches the host may run ahead
  std::size_t turn = 0;
};

template <class T, class... A>
T& kept(std::shared_ptr<void>& place, const A&... arguments) {
  if (!place) place = std::make_shared<T>(arguments...);
  return *static_cast<T*>(place.get());
}

}  // namespace

void StreamKernels::forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                            double token_weight) const {
  run(Call(op, work, args, token_weight, false), type, false);
}

void StreamKernels::backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                             double token_weight) const {
  run(Call(op, work, args, token_weight, true), type, true);
}

void StreamKernels::loss_statistic(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                                   double token_weight) const {
  run_loss_statistic(op, work, type, args, token_weight, stream_);
}

void StreamKernels::run(const Call& call, DType type, bool backward) const {
  switch (theme_of(call.op.kind)) {
    case Theme::elementwise: return run_elementwise(call, type, backward, stream_);
    case Theme::norms: return run_norms(call, type, backward, stream_);
    case Theme::embeddings: return run_embeddings(call, type, backward, stream_);
    case Theme::rotary: return run_rotary(call, type, backward, stream_);
    case Theme::cross_entropy: return run_cross_entropy(call, type, backward, stream_);
    case Theme::moe: return run_moe(call, type, backward, stream_);
    case Theme::attention:
      if (backward) return launch_attention_backward(type, attention_backward_arguments(type, call), stream_);
      return launch_attention_forward(type, attention_forward_arguments(type, call), stream_);
    case Theme::linear:
      return multiply(backward ? linear_backward_calls(type, call) : linear_forward_calls(type, call), call);
    case Theme::expert_linear:
      return multiply(backward ? expert_linear_backward_calls(type, call) : expert_linear_forward_calls(type, call),
                      call);
    case Theme::none: break;
  }
  call.fail("the cuda backend has no kernel for it");
}

void StreamKernels::multiply(const LinearCalls& calls, const Call& call) const {
  const BufferView room{call.scratch<std::byte>(kMatmulWorkspaceBytes), kMatmulWorkspaceBytes};
  if (!context_.matmul_runner && (context_.libraries == nullptr || !context_.libraries->cublas_lt))
    throw MachineError("matrix products on a GPU need cuBLASLt" +
                       (context_.libraries == nullptr ? std::string() : ": " + context_.libraries->why_no_cublas_lt));
  for (const MatmulCall& p : calls.matmuls)
    kept<MatmulRunner>(context_.matmul_runner, context_.libraries->cublas_lt)
        .multiply(
            p,
            {room.data, room.bytes,
             context_.reserved_multiprocessors > 0 ? context_.multiprocessors - context_.reserved_multiprocessors : 0},
            stream_);
  for (const ColumnSumCall& s : calls.sums)
    run_bias_gradient(s.type, s.from, s.rows, s.columns, s.to, s.accumulate, room, stream_);
}

std::byte* StreamKernels::norm_scratch() const { return static_cast<std::byte*>(kept<Memory>(context_.memory).norms); }

void StreamKernels::batch(const TokenReader& read, std::uint64_t seed, std::int64_t first, const Workload& work,
                          std::int64_t vocab, BufferView ids, BufferView targets) const {
  if (!read) return run_synthetic_tokens(seed, first, work, vocab, ids, targets, stream_);
  Staging& staging = kept<Memory>(context_.memory).next_staging();
  const std::int64_t tokens = work.tokens();
  auto* to = reinterpret_cast<std::int64_t*>(staging.take(2 * tokens * 8));
  for (std::int64_t s = 0; s < work.sequences; ++s)
    read(first + s, work.seq_len, to + s * work.seq_len, to + tokens + s * work.seq_len);
  copy(ids.data, reinterpret_cast<const std::byte*>(to), tokens * 8);
  copy(targets.data, reinterpret_cast<const std::byte*>(to + tokens), tokens * 8);
  staging.used_by(stream_);
}

void StreamKernels::read_state(const StateReader& read, const Parameter& parameter, StatePart part, const Slab& slab,
                               DType type, std::byte* to) const {
  std::vector<std::byte> values(static_cast<std::size_t>(elements_of(slab, parameter) * size_of(type)));
  read(parameter, part, slab, type, values.data());
  copy(to, values.data(), static_cast<std::int64_t>(values.size()));
  check(cudaStreamSynchronize(stream_), -1, "copying a parameter's state");
}

void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext& context) {
  const StreamKernels kernels(stream, context);
  make_kernel(call, kernels)();
}

}  // namespace fsdp::cuda
