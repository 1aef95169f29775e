// Time of fused attention by shape: arithmetic at the kernel's ceiling, reduced for short sequences, few tiles and
// small heads; or the bytes of q, k, v and the result, if they take longer.
#pragma once

#include "models/attention_kernel.h"
#include "models/cluster.h"
#include "models/graph.h"
#include "planner/costs.h"
#include "planner/costs/kernels.h"
#include "planner/plan.h"

namespace fsdp {

// What scaled_dot_product_attention's kernel is under the release of a plan's dialect, for tensors of this type: cuDNN
// has none for more than 16 bits, and for heads above those of latent attention (192, which it has: rows 2581 to 2588
// of tests/accuracy/gemm_attention.csv) only the newest has (256).
[[nodiscard]] AttentionKernel attention_of(AttentionKernel, TorchVersion release, DType, std::int64_t head_dim);

// True if that is cuDNN's on this GPU.
[[nodiscard]] bool is_cudnn(AttentionKernel, const GpuSpec&);

// Fraction of the dense 16-bit peak that this kernel reaches on this GPU on long sequences with heads of 128, without
// loss to the power limit.
[[nodiscard]] AttentionCeiling attention_ceiling(AttentionKernel, const GpuSpec&, const Costs&);

// The part of the ceiling that a shape leaves, in (0, 1].
[[nodiscard]] double attention_shape_factor(AttentionKernel, const OpShape&, const Workload&, const GpuSpec&);

// Seconds of arithmetic. Attention leaves the matrix units idle for half of the time or more and keeps its clock:
// kernels of 0.4 s on B200 run at the speed of short ones, where matmuls lose a third. `flops` as forward_flops and
// backward_flops count them, `peak` of the matrix units in the tensors' type.
[[nodiscard]] double attention_arithmetic(AttentionKernel, Direction, double flops, double peak, const OpShape&,
                                          const Workload&, const GpuSpec&, const Costs&);

}  // namespace fsdp
