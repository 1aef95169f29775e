// The arguments of attention's CUDA kernels, from those of the operation (executor/kernels/call.h): packed or not, in
// the order of Action::forward and Action::backward. Reads no memory that pointers point to.
#pragma once

#include "executor/cuda/toolkit/kernels/attention/attention.h"
#include "executor/kernels/call.h"
#include "models/dtype.h"

namespace fsdp::cuda {

// Forward takes no scratch; backward takes attention_rows() elements of the arithmetic type. Throws MachineError for
// buffers of other sizes than the model's and for extents beyond 32 bits.
[[nodiscard]] AttentionForward attention_forward_arguments(DType, const Call&);
[[nodiscard]] AttentionBackward attention_backward_arguments(DType, const Call&);

}  // namespace fsdp::cuda
