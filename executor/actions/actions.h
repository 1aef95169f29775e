// The actions by theme, and helpers that they share. For executor/actions/ alone. Kernel bodies keep the kernel set by
// reference.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/actions/extents.h"
#include "executor/actions/kernel_call.h"
#include "executor/kernels/kernel_set.h"
#include "models/index.h"
#include "planner/layout.h"

namespace fsdp::actions {

inline const UnitLayout& layout_of(const KernelCall& c) { return c.program.layouts.at(at(c.op.unit)); }
inline const Buffer& buffer_of(const KernelCall& c, std::size_t arg) {
  return c.program.buffers.at(at(c.args[arg].buffer));
}
// This rank's place in the shard group of the operation's unit.
inline std::int64_t shard_rank(const KernelCall& c) {
  return c.op.unit < 0 ? 0 : layout_of(c).shard_index(c.plan, c.rank);
}
inline std::int64_t tensor_rank(const KernelCall& c) { return c.rank % c.plan.tensor(); }
// What an operation on a unit, or on a parameter that the plan ignores (a unit below 0), holds of it on this rank:
// the layout, and the rank within it.
struct HeldLayout {
  UnitLayout layout;
  std::int64_t rank = 0;
};
[[nodiscard]] HeldLayout layout_held(const KernelCall&);
inline const Parameter& parameter(const KernelCall& c, std::int32_t id) { return c.model.parameters.at(at(id)); }
[[nodiscard]] Workload workload_of(const KernelCall&);
[[nodiscard]] double token_weight(const KernelCall&);  // of a step's loss
void expect_args(const KernelCall&, std::size_t count);

// A parameter that a buffer holds by itself; its place in the unit's layout.
[[nodiscard]] const ShardedParam& sharded_param(const KernelCall&, std::size_t arg);

[[nodiscard]] inline GradientPlaces gradient_places(const KernelCall& c, std::size_t arg) {
  return gradient_places(c.plan, buffer_of(c, arg));
}

// shards and their copies (shards.cpp)
KernelBody init_parameters(const KernelCall&, const KernelSet&);
KernelBody init_optimizer(const KernelCall&, const KernelSet&);
KernelBody cast_shard(const KernelCall&, const KernelSet&);
KernelBody copy_in(const KernelCall&, const KernelSet&);
KernelBody copy_out(const KernelCall&, const KernelSet&);
KernelBody keep_shard(const KernelCall&, const KernelSet&);
KernelBody reorder_shards(const KernelCall&, const KernelSet&);
KernelBody shard_to_device(const KernelCall&, const KernelSet&);

// gradients on their way to shards (gradients.cpp)
KernelBody add_gradient(const KernelCall&, const KernelSet&);
KernelBody accumulate_gradient(const KernelCall&, const KernelSet&);
KernelBody copy_in_gradients(const KernelCall&, const KernelSet&);
KernelBody divide_gradient(const KernelCall&, const KernelSet&);
KernelBody finish_gradient(const KernelCall&, const KernelSet&);
KernelBody gradient_to_host(const KernelCall&, const KernelSet&);

// flat parameters of fsdp1 (flat.cpp)
KernelBody init_flat_parameters(const KernelCall&, const KernelSet&);
KernelBody init_flat_states(const KernelCall&, const KernelSet&);
KernelBody concatenate_gradients(const KernelCall&, const KernelSet&);
KernelBody add_flat_gradient(const KernelCall&, const KernelSet&);
KernelBody cast_flat_gradient(const KernelCall&, const KernelSet&);

// what tensor ranks do (over_tensor.cpp)
KernelBody reorder_tokens(const KernelCall&, const KernelSet&);
KernelBody slice_gradient(const KernelCall&, const KernelSet&);
KernelBody loss_statistic(const KernelCall&, const KernelSet&);

// clipping and the optimizer (update.cpp)
KernelBody clip_local_norm(const KernelCall&, const KernelSet&);
KernelBody clip_scale(const KernelCall&, const KernelSet&);
KernelBody optimizer_step(const KernelCall&, const KernelSet&);

}  // namespace fsdp::actions
