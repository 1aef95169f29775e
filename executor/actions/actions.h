// Kernels by theme: what run_kernels.cpp dispatches to, and what they share. For run_kernels*.cpp alone. Bodies keep
// the machine by reference.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/actions/kernel_set.h"
#include "executor/training/interpreter.h"
#include "planner/layout.h"

namespace fsdp::run_kernels {

inline std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
inline const UnitLayout& layout_of(const KernelCall& c) { return c.program.layouts.at(at(c.op.unit)); }
inline const Buffer& buffer_of(const KernelCall& c, std::size_t arg) {
  return c.program.buffers.at(at(c.args[arg].buffer));
}
inline std::int64_t shard_rank(const KernelCall& c) {
  return c.plan.dialect == Dialect::ddp ? 0 : c.rank % c.plan.shard();
}
inline const Parameter& parameter(const KernelCall& c, std::int32_t id) { return c.model.parameters.at(at(id)); }
[[nodiscard]] Workload workload_of(const KernelCall&);
void expect_args(const KernelCall&, std::size_t count);

// A parameter that a buffer holds by itself; its place in the unit's layout.
[[nodiscard]] const ShardedParam& sharded_param(const KernelCall&, std::size_t arg);

// How a unit's sharded gradient lies in its buffer: ddp keeps the shard's own layout, fsdp2 that of the trained
// parameters, host memory those without padding.
[[nodiscard]] GradientPlaces gradient_places(const KernelCall&, std::size_t arg);

// shards and their copies (shards.cpp)
KernelBody init_parameters(const KernelCall&, const MachineKernels&);
KernelBody init_optimizer(const KernelCall&, const MachineKernels&);
KernelBody cast_shard(const KernelCall&, const MachineKernels&);
KernelBody copy_in(const KernelCall&, const MachineKernels&);
KernelBody copy_out(const KernelCall&, const MachineKernels&);
KernelBody keep_shard(const KernelCall&, const MachineKernels&);
KernelBody reorder_shards(const KernelCall&, const MachineKernels&);
KernelBody shard_to_device(const KernelCall&, const MachineKernels&);

// gradients on their way to shards (gradients.cpp)
KernelBody add_gradient(const KernelCall&, const MachineKernels&);
KernelBody accumulate_gradient(const KernelCall&, const MachineKernels&);
KernelBody copy_in_gradients(const KernelCall&, const MachineKernels&);
KernelBody divide_gradient(const KernelCall&, const MachineKernels&);
KernelBody finish_gradient(const KernelCall&, const MachineKernels&);
KernelBody gradient_to_host(const KernelCall&, const MachineKernels&);

// clipping and the optimizer (update.cpp)
KernelBody clip_local_norm(const KernelCall&, const MachineKernels&);
KernelBody clip_scale(const KernelCall&, const MachineKernels&);
KernelBody optimizer_step(const KernelCall&, const MachineKernels&);

}  // namespace fsdp::run_kernels
