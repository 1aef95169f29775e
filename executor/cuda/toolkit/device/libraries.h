// The libraries of this machine, found once when a backend is made.
#pragma once

#include <memory>
#include <string>

#include "executor/cuda/library.h"

namespace fsdp::cuda {

struct Nccl;  // nccl.h

struct Libraries {
  Library cublas_lt, cudnn;  // empty: not found. Their callers look up the functions.
  Version cublas_lt_version, cudnn_version;
  std::shared_ptr<const Nccl> nccl;  // null: not found
  std::string why_no_cublas_lt, why_no_cudnn, why_no_nccl;
};
[[nodiscard]] std::shared_ptr<const Libraries> find_libraries();

// "cuBLASLt 13.1.0 (/usr/local/cuda/lib64/libcublasLt.so.13), cuDNN none, NCCL 2.28.9 (libnccl.so.2)"
[[nodiscard]] std::string describe(const Libraries&);

}  // namespace fsdp::cuda
