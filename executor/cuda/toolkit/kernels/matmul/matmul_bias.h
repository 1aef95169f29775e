// Where cuBLASLt has no epilogue that adds a bias, or cannot read it where it lies: rows are set to the bias first, and
// the matmul adds to them.
#pragma once

#include <cstdint>

#include "models/dtype.h"

struct CUstream_st;

namespace fsdp::cuda {

// to[r, c] = bias[c]. Enqueues; MachineError for what the CUDA runtime refuses.
void launch_bias_rows(DType, const void* bias, std::int64_t rows, std::int64_t columns, void* to, CUstream_st*);

}  // namespace fsdp::cuda
