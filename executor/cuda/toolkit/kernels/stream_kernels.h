// The kernels of a GPU as a KernelSet on one stream: each puts its work on the stream and returns. Used while its
// context lives, by the host thread of that context's rank.
//
// Members are defined in elementwise.cu (copies, conversions, scaling), layouts.cu (layouts of collectives) and
// update.cu (optimizers, norms, initial values); those that dispatch an op, or need only the driver or a library, in
// toolkit/stream_kernels.cpp.
#pragma once

#include <memory>

#include "executor/actions/kernel_call.h"
#include "executor/kernels/call.h"
#include "executor/kernels/kernel_set.h"

struct CUstream_st;  // cudaStream_t is a pointer to it; so this header needs no CUDA toolkit

namespace fsdp::cuda {

struct LinearCalls;  // executor/cuda/matmul_shape.h
struct Libraries;    // toolkit/device/libraries.h

// What the kernels of one rank use beside their buffers. One per rank, used by that rank's host thread alone; its GPU
// is the current one.
struct KernelContext {
  const Libraries* libraries = nullptr;  // cuBLASLt, cuDNN
  int device = 0;                        // the driver's number
  int multiprocessors = 0;               // of the GPU
  int reserved_multiprocessors = 0;      // matmuls leave them to collectives (CudaOptions::nccl_ctas)
  // Made by StreamKernels at first use, kept for the run.
  std::shared_ptr<void> matmul_runner;  // handles and algorithms of matmuls
  std::shared_ptr<void> memory;         // 2 KiB of device memory for norms, and pinned memory for batches
};

class StreamKernels final : public KernelSet {
 public:
  StreamKernels(CUstream_st* stream, KernelContext& context) : stream_(stream), context_(context) {}

  void forward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const override;
  void backward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const override;
  void loss_statistic(const Op&, const Workload&, DType, std::span<const KernelArg>, double) const override;
  void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
               bool accumulate) const override;
  void scale(DType, BufferView values, std::int64_t elements, double factor) const override;
  void scatter_copy_in(const UnitLayout&, DType from, std::span<const BufferView> full, DType to,
                       BufferView input) const override;
  void gather_copy_out(const UnitLayout&, DType, BufferView gathered, std::span<const BufferView> full) const override;
  void gather_parts_copy_out(const UnitLayout&, std::int64_t n, DType, BufferView gathered,
                             std::span<const BufferView> full) const override;
  void adamw(const OptimizerUpdate&) const override;
  void sgd(const OptimizerUpdate&) const override;
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const override;
  void zero(BufferView) const override;
  void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer, std::int64_t piece_bytes,
               bool to_rows) const override;
  void local_norm(DType, std::span<const BufferView> values, double p, BufferView norm) const override;
  void clip(DType, std::span<const BufferView> values, double p, double limit, BufferView norm) const override;
  // A reader's tokens are read at once, by this thread, and travel through pinned memory.
  void batch(const TokenReader&, std::uint64_t seed, std::int64_t first, const Workload&, std::int64_t vocab,
             BufferView ids, BufferView targets) const override;
  void initial_values(std::uint64_t seed, const Parameter&, std::int64_t begin, std::int64_t count, DType,
                      std::byte* to) const override;
  // Before the first step. Waits for the copy, because its source goes.
  void read_state(const StateReader&, const Parameter&, StatePart, const Slab&, DType, std::byte* to) const override;

 private:
  void run(const Call&, DType, bool backward) const;
  // Matmuls in the workspace; then, in its place, partial sums of the bias's gradient.
  void multiply(const LinearCalls&, const Call&) const;
  [[nodiscard]] std::byte* norm_scratch() const;  // kNormScratchBytes of device memory

  CUstream_st* const stream_;
  KernelContext& context_;
};

// Puts the kernels of one operation on the stream. Scratch and workspace are among the call's views, as the
// implementation declares them; only the context's memory is allocated. `call` may be gone when this returns, except
// what call.training points to. Throws MachineError for buffers that do not fit, for an operation without a kernel, and
// for errors of the driver or a library.
void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext& context);

}  // namespace fsdp::cuda
