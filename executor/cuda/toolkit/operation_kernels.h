// Kernels of operations on a GPU, for Device::launch_kernel of the cuda backend.
#pragma once

#include <memory>

#include "executor/actions/kernel_call.h"

struct CUstream_st;  // cudaStream_t is a pointer to it; so this header needs no CUDA toolkit

namespace fsdp::cuda {

struct Libraries;  // device/libraries.h

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

// Puts the kernels of one operation on the stream. Scratch and workspace are among the call's views, as the
// implementation declares them; only the context's memory is allocated. `call` may be gone when this returns, except
// what call.training points to. Throws MachineError for buffers that do not fit, for an operation without a kernel, and
// for errors of the driver or a library.
void enqueue_kernel(const KernelCall& call, CUstream_st* stream, KernelContext& context);

}  // namespace fsdp::cuda
