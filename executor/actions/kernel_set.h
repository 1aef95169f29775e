// What Actions are made of: work on one machine's memory. make_kernel (kernel_call.h) checks a call against the model
// and the layouts and says which of these an Action needs; the same for every machine, so that all run the same
// extents.
//
// On the host a call has done its work when it returns and takes no heap. On a GPU it puts its work on a stream;
// pointers are the device's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/kernels/kernels.h"
#include "executor/training_inputs.h"
#include "planner/layout.h"

namespace fsdp {

class KernelSet {
 public:
  virtual ~KernelSet() = default;

  // As the functions of these names in kernels.h.
  virtual void forward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const = 0;
  virtual void backward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const = 0;
  virtual void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
                       bool accumulate) const = 0;
  virtual void scale(DType, BufferView values, std::int64_t elements, double factor) const = 0;
  virtual void scatter_copy_in(const UnitLayout&, DType from, std::span<const BufferView> full, DType to,
                               BufferView input) const = 0;
  virtual void gather_copy_out(const UnitLayout&, DType, BufferView gathered,
                               std::span<const BufferView> full) const = 0;
  virtual void gather_parts_copy_out(const UnitLayout&, std::int64_t n, DType, BufferView gathered,
                                     std::span<const BufferView> full) const = 0;
  virtual void adamw(const UnitLayout&, std::int64_t shard_rank, const Optimizer&, std::int64_t step, DType master,
                     BufferView gradient, BufferView shard, BufferView state1, BufferView state2,
                     GradientPlaces) const = 0;
  virtual void sgd(const UnitLayout&, std::int64_t shard_rank, const Optimizer&, DType master, BufferView gradient,
                   BufferView shard, GradientPlaces) const = 0;

  virtual void copy(std::byte* to, const std::byte* from,
                    std::int64_t bytes) const = 0;  // between any of the machine's memories
  virtual void zero(BufferView) const = 0;
  // `shards` slabs of `outer` pieces each, to (`to_rows`) or from `outer` rows of `shards` pieces each.
  virtual void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer,
                       std::int64_t piece_bytes, bool to_rows) const = 0;

  // Into `norm`, one fp64 number: the sum of |x|^p over all values; of p = infinity the largest magnitude. Not a number
  // stays.
  virtual void local_norm(DType, std::span<const BufferView> values, double p, BufferView norm) const = 0;
  // All values by min(1, limit / (root + 1e-6)), the root of what `norm` holds, as torch.nn.utils.clip_grad_norm_.
  virtual void clip(DType, std::span<const BufferView> values, double p, double limit, BufferView norm) const = 0;

  // Sequences `first` and the following: from the reader, or synthetic where it is empty.
  virtual void batch(const TokenReader&, std::uint64_t seed, std::int64_t first, const Workload&, std::int64_t vocab,
                     BufferView ids, BufferView targets) const = 0;
  // As fill_initial_values of run.h.
  virtual void initial_values(std::uint64_t seed, const Parameter&, std::int64_t begin, std::int64_t count, DType,
                              std::byte* to) const = 0;
  // `elements`: of the slab.
  virtual void read_state(const StateReader&, const Parameter&, StatePart, const Slab&, DType, std::int64_t elements,
                          std::byte* to) const = 0;
};

[[nodiscard]] const KernelSet& host_kernel_set();

}  // namespace fsdp
