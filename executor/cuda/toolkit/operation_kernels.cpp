#include "executor/cuda/toolkit/operation_kernels.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

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

class StreamKernels final : public KernelSet {
 public:
  StreamKernels(StreamHandle stream, KernelContext& context) : stream_(stream), context_(context) {}

  void forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
               double token_weight) const override {
    run(Call(op, work, args, token_weight, false), type, false);
  }
  void backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                double token_weight) const override {
    run(Call(op, work, args, token_weight, true), type, true);
  }
  void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t n,
               bool accumulate) const override {
    run_convert(from_type, from, to_type, to, n, accumulate, stream_);
  }
  void scale(DType type, BufferView values, std::int64_t n, double factor) const override {
    run_scale(type, values, n, factor, stream_);
  }
  void scatter_copy_in(const UnitLayout& layout, DType from, std::span<const BufferView> full, DType to,
                       BufferView input) const override {
    run_scatter_copy_in(layout, from, full, to, input, stream_);
  }
  void gather_copy_out(const UnitLayout& layout, DType type, BufferView gathered,
                       std::span<const BufferView> full) const override {
    run_gather_copy_out(layout, type, gathered, full, stream_);
  }
  void gather_parts_copy_out(const UnitLayout& layout, std::int64_t n, DType type, BufferView gathered,
                             std::span<const BufferView> full) const override {
    run_gather_parts_copy_out(layout, n, type, gathered, full, stream_);
  }
  void adamw(const UnitLayout& layout, std::int64_t rank, const Optimizer& optimizer, std::int64_t step, DType master,
             BufferView gradient, BufferView shard, BufferView state1, BufferView state2,
             GradientPlaces places) const override {
    run_adamw(layout, rank, optimizer, step, master, gradient, shard, state1, state2, places, stream_);
  }
  void sgd(const UnitLayout& layout, std::int64_t rank, const Optimizer& optimizer, DType master, BufferView gradient,
           BufferView shard, GradientPlaces places) const override {
    run_sgd(layout, rank, optimizer, master, gradient, shard, places, stream_);
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const override {
    run_copy(to, from, bytes, stream_);
  }
  void zero(BufferView view) const override { run_zero(view.data, view.bytes, stream_); }
  void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
               bool to_rows) const override {
    run_reorder(from, to, shards, outer, piece_bytes, to_rows, stream_);
  }
  void local_norm(DType type, std::span<const BufferView> values, double p, BufferView norm) const override {
    run_local_norm(type, values, p, norm, static_cast<std::byte*>(kept<Memory>(context_.memory).norms), stream_);
  }
  void clip(DType type, std::span<const BufferView> values, double p, double limit, BufferView norm) const override {
    run_clip(type, values, p, limit, norm, stream_);
  }

  // A reader's tokens are read at once, by this thread, and travel through pinned memory.
  void batch(const TokenReader& read, std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
             BufferView ids, BufferView targets) const override {
    if (!read) return run_synthetic_tokens(seed, first, work, vocab, ids, targets, stream_);
    Staging& staging = kept<Memory>(context_.memory).next_staging();
    const std::int64_t tokens = work.tokens();
    auto* to = reinterpret_cast<std::int64_t*>(staging.take(2 * tokens * 8));
    for (std::int64_t s = 0; s < work.sequences; ++s)
      read(first + s, work.seq_len, to + s * work.seq_len, to + tokens + s * work.seq_len);
    for (std::int64_t i = 0; i < 2 * tokens; ++i)
      if (to[i] < 0 || to[i] >= vocab)
        throw MachineError(fmt::format("token {} of sequence {} is outside of the vocabulary of {}", to[i],
                                       first + i % tokens / work.seq_len, vocab));
    run_copy(ids.data, reinterpret_cast<const std::byte*>(to), tokens * 8, stream_);
    run_copy(targets.data, reinterpret_cast<const std::byte*>(to + tokens), tokens * 8, stream_);
    staging.used_by(stream_);
  }
  void initial_values(std::uint64_t seed, const Parameter& parameter, std::int64_t begin, std::int64_t count,
                      DType type, std::byte* to) const override {
    run_initial_values(initial_values_of(seed, parameter), begin, count, type, to, stream_);
  }
  // Before the first step; the host waits for the copy, whose source goes.
  void read_state(const StateReader& read, const Parameter& parameter, StatePart part, const Slab& slab, DType type,
                  std::int64_t elements, std::byte* to) const override {
    std::vector<std::byte> values(static_cast<std::size_t>(elements * size_of(type)));
    read(parameter, part, slab, type, values.data());
    run_copy(to, values.data(), static_cast<std::int64_t>(values.size()), stream_);
    check(cudaStreamSynchronize(stream_), -1, "copying a parameter's state");
  }

 private:
  void run(const Call& call, DType type, bool backward) const {
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

  // Matmuls in the workspace; then, in its place, partial sums of the bias's gradient.
  void multiply(const LinearCalls& calls, const Call& call) const {
    const BufferView room{call.scratch<std::byte>(kMatmulWorkspaceBytes), kMatmulWorkspaceBytes};
    if (!context_.matmul_runner && (context_.libraries == nullptr || !context_.libraries->cublas_lt))
      throw MachineError("matrix products on a GPU need cuBLASLt" +
                         (context_.libraries == nullptr ? std::string() : ": " + context_.libraries->why_no_cublas_lt));
    for (const MatmulCall& p : calls.matmuls)
      kept<MatmulRunner>(context_.matmul_runner, context_.libraries->cublas_lt)
          .multiply(
              p,
              {room.data, room.bytes,
               context_.reserved_multiprocessors > 0 ? context_.multiprocessors - context_.reserved_multiprocessors
                                                     : 0},
              stream_);
    for (const ColumnSumCall& s : calls.sums)
      run_bias_gradient(s.type, s.from, s.rows, s.columns, s.to, s.accumulate, room, stream_);
  }

  const StreamHandle stream_;
  KernelContext& context_;
};

}  // namespace

std::unique_ptr<KernelSet> stream_kernels(CUstream_st* stream, KernelContext& context) {
  return std::make_unique<StreamKernels>(stream, context);
}

void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext& context) {
  const StreamKernels kernels(stream, context);
  make_kernel(call, kernels)();
}

}  // namespace fsdp::cuda
