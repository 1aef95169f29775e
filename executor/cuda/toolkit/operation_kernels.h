// The kernels of operations on a GPU: what Device::launch_kernel of the cuda backend puts on a stream.
#pragma once

#include <memory>

#include "executor/actions/kernel_call.h"

struct CUstream_st;  // cudaStream_t is a pointer to it; so this header needs no CUDA toolkit

namespace fsdp::cuda {

struct Libraries;  // machine/libraries.h

// What the kernels of one rank use beside their buffers. One per rank, used by that rank's host thread alone; its GPU
// is the current one.
struct KernelContext {
  const Libraries* libraries = nullptr;  // cuBLASLt, cuDNN
  int device = 0;                        // the driver's number
  int multiprocessors = 0;               // of the GPU
  int reserved_multiprocessors =
      0;  // of those, what a collective may take at the same time (CudaOptions::nccl_ctas): matmuls leave them out
  std::shared_ptr<void>
      matmul_runner;  // handles and algorithms of matmuls: made by their code at first use, kept for the run
  std::shared_ptr<void>
      memory;  // 2 KiB of device memory for norms and pinned memory for batches: made by StreamKernels at first use
};

// Puts the kernels of one operation on the stream, by op.action and, in forward, recompute and backward, by its op's
// kind. Scratch and workspace are among the call's views, as the implementation declares them; nothing else is
// allocated but the context's memory. `call` may be gone when this returns, except what call.training points to. Throws
// MachineError for buffers that do not fit, for what has no kernel, and for what the driver or a library refuses.
void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext& context);

}  // namespace fsdp::cuda
