// Shared by the parts of the `fsdp1` dialect: the state of every unit, and the making of a unit's buffers and
// operations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "models/index.h"
#include "planner/lowering/dialect.h"

namespace fsdp {

struct Fsdp1Unit {
  bool full_shard = true;      // FULL_SHARD or HYBRID_SHARD; else SHARD_GRAD_OP or _HYBRID_SHARD_ZERO2
  std::int32_t shard = kNone;  // the (flat) parameter: this rank's part, or without sharding all of it
  std::int32_t full =
      kNone;  // what kernels read, if it is not `shard`: the gathered parameter, or its low-precision copy
  bool prefetched = false, needs_forward = false, needs_backward = false;  // PyTorch's flags of those names
  bool ran_pre_backward = false;
  // It lies in a module whose checkpoint is reentrant, which ends before this op: all of its forward runs again. kNone:
  // it lies in none.
  std::int32_t again_until = kNone;
  std::int32_t post_forward_index = kNone;  // PyTorch's: in the post-forward order
  std::size_t forwards = 0;                 // of this micro-batch that have begun
  std::vector<std::int32_t> pieces;  // per parameter: its gradient until autograd concatenates all; kNone: not live
  // Unsharded, of this micro-batch and of those before it that were not reduced; kNone: not live.
  std::int32_t flat_gradient = kNone;
  std::int32_t of_later_uses = kNone;  // what uses that came later in forward gave, until the first use's is there
  std::int32_t added = kNone;          // the sum that autograd has just made of it and holds until its hooks have run
  std::int32_t sharded_gradient = kNone;
  bool has_sharded_gradient = false;  // live in this step
  std::int32_t on_device = kNone;     // offload: the sharded gradient until the end of backward
};

class Fsdp1Units {
 public:
  explicit Fsdp1Units(const LoweringContext& context) : c(context), units_(context.program.layouts.size()) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      units_[u].full_shard = c.plan.units[u].reshard_after_forward != Reshard::no;
      units_[u].pieces.assign(c.program.layouts[u].params.size(), kNone);
      if (!c.program.layouts[u].params.empty()) with_parameters.push_back(static_cast<std::int32_t>(u));
      const auto& again = c.ids.checkpointed;
      for (std::int32_t m = c.ids.units[u].front(); c.plan.reentrant && m >= 0; m = c.model.modules[at(m)].parent)
        if (std::find(again.begin(), again.end(), m) != again.end())
          units_[u].again_until = c.model.modules[at(m)].op_end;
    }
  }

  [[nodiscard]] Fsdp1Unit& operator[](std::int32_t u) { return units_[at(u)]; }
  [[nodiscard]] const Fsdp1Unit& operator[](std::int32_t u) const { return units_[at(u)]; }
  [[nodiscard]] const UnitLayout& layout(std::int32_t u) const { return c.program.layouts[at(u)]; }
  [[nodiscard]] bool empty(std::int32_t u) const { return layout(u).params.empty(); }

  // As PyTorch 1.13 has it (docs/fsdp-order.md A2.12).
  [[nodiscard]] bool early() const { return c.plan.torch.before(2, 0); }
  [[nodiscard]] bool trained(std::int32_t u) const { return layout(u).trained(); }  // else its parameters are frozen
  [[nodiscard]] bool again(std::int32_t u) const { return units_[at(u)].again_until >= 0; }
  [[nodiscard]] bool sharded() const { return c.plan.shard() > 1; }
  [[nodiscard]] bool hybrid() const { return sharded() && c.plan.replicate() > 1; }
  // Of what is gathered, and of gradients as they are made.
  [[nodiscard]] DType parameter_dtype(std::int32_t u) const {
    return c.implementation.autocast ? kept(u) : layout(u).param_dtype;
  }
  [[nodiscard]] DType kept(std::int32_t u) const { return layout(u).params.front().kept; }  // of its shard
  [[nodiscard]] bool casts_shards(std::int32_t u) const { return parameter_dtype(u) != kept(u); }
  [[nodiscard]] Stream reduction_end() const { return hybrid() ? Stream::all_reduce : Stream::reduce_scatter; }

  [[nodiscard]] Operation op(Action action, Stream stream, std::int32_t unit,
                             Communicator comm = Communicator::none) const {
    Operation o = operation(action, stream, unit, micro_batch);
    o.comm = comm;
    return o;
  }

  // What a collective reads or writes: NCCL's backend marked it for NCCL's own stream (A2.12).
  [[nodiscard]] Buffer of_collective(Buffer info) const {
    if (early()) info.recorded_streams |= static_cast<std::uint8_t>(1U << static_cast<unsigned>(info.pool));
    return info;
  }

  // `recorded`: streams that PyTorch marks the block for before it frees it, the pool's own left out.
  [[nodiscard]] Buffer buffer(std::int64_t elements, DType dtype, BufferKind kind, Stream pool, std::int32_t unit,
                              std::initializer_list<Stream> recorded = {}) const {
    Buffer info;
    info.bytes = elements * size_of(dtype);
    info.dtype = dtype;
    info.kind = kind;
    info.pool = pool;
    info.unit = unit;
    info.micro_batch = micro_batch;
    for (Stream s : recorded)
      if (s != pool)
        info.recorded_streams = static_cast<std::uint8_t>(info.recorded_streams | (1U << static_cast<unsigned>(s)));
    return info;
  }

  const LoweringContext c;
  std::vector<std::int32_t> with_parameters;  // units that have a flat parameter
  std::int16_t micro_batch = 0;

 private:
  std::vector<Fsdp1Unit> units_;
};

}  // namespace fsdp
