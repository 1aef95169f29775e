// A kernel set: everything that the actions of a Program compute with. The host's (host_kernel_set.h) work at once on
// the calling thread; those of a GPU stream put their work on the stream and return.
//
// A new kernel that is not an op's is declared here and implemented by each kernel set (docs/extending.md).
//
// Extents come from the model (Op, Workload, UnitLayout), never from a buffer. A buffer of another size is a broken
// lowering: MachineError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "executor/backend.h"
#include "executor/training_inputs.h"
#include "models/dtype.h"
#include "models/graph.h"
#include "planner/layout.h"
#include "planner/layout/gradients.h"
#include "planner/plan.h"

namespace fsdp {

struct KernelArg {
  BufferView view;          // data null: absent
  bool accumulate = false;  // of gradients: add to what is there
};

// One unit's optimizer step on the trained elements that a rank holds, without padding.
struct OptimizerUpdate {
  const UnitLayout& layout;
  std::int64_t shard_rank = 0;
  Optimizer optimizer = {};
  std::int64_t step = 1;    // counted from 1
  DType type = DType::f32;  // of all buffers
  BufferView gradient = {}, shard = {};
  BufferView state1 = {}, state2 = {};               // those that the optimizer keeps, dense, in parameter order
  GradientPlaces places = GradientPlaces::as_shard;  // where the parts lie in `gradient`
};

class KernelSet {
 public:
  // One op. Arguments in the positional order of Action::forward and Action::backward (planner/program.h).
  // `token_weight`: 1 / (tokens of the whole step of one rank), so that losses and gradients of micro-batches sum to
  // the mean. Only cross_entropy uses it, and adds its share to the loss: one fp64 element, its output.
  virtual void forward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const = 0;
  virtual void backward(const Op&, const Workload&, DType, std::span<const KernelArg>, double token_weight) const = 0;

  // Action::loss_statistic, with its arguments.
  virtual void loss_statistic(const Op&, const Workload&, DType, std::span<const KernelArg>,
                              double token_weight) const = 0;

  virtual void convert(DType from_type, BufferView from, DType to_type, BufferView to, std::int64_t elements,
                       bool accumulate) const = 0;
  virtual void scale(DType, BufferView values, std::int64_t elements, double factor) const = 0;

  // Copy-in and copy-out of a unit (planner/layout.h). `full[i]`: the i-th parameter or its gradient, contiguous; null
  // data: zeros, or left out. Copy-in leaves out parameters that are not trained.
  virtual void scatter_copy_in(const UnitLayout&, DType from, std::span<const BufferView> full, DType to,
                               BufferView input) const = 0;  // to [W, S_g]
  virtual void gather_copy_out(const UnitLayout&, DType, BufferView gathered,
                               std::span<const BufferView> full) const = 0;  // from [W, S_g]
  // From the parts that groups of `n` ranks kept after forward: each of the n slots holds an n-th of every padded
  // parameter, and a parameter's padding lies at its end.
  virtual void gather_parts_copy_out(const UnitLayout&, std::int64_t n, DType, BufferView gathered,
                                     std::span<const BufferView> full) const = 0;

  virtual void adamw(const OptimizerUpdate&) const = 0;
  virtual void sgd(const OptimizerUpdate&) const = 0;  // state1: the momentum, absent where it is 0

  // Between host and device memory in any direction.
  virtual void copy(std::byte* to, const std::byte* from, std::int64_t bytes) const = 0;
  virtual void zero(BufferView) const = 0;
  // `shards` slabs of `outer` pieces each, to (`to_rows`) or from `outer` rows of `shards` pieces each.
  virtual void reorder(BufferView from, BufferView to, std::int64_t shards, std::int64_t outer,
                       std::int64_t piece_bytes, bool to_rows) const = 0;

  // Writes one fp64 number to `norm`: the sum of |x|^p over all values, or the largest |x| for p = infinity. NaN
  // propagates.
  virtual void local_norm(DType, std::span<const BufferView> values, double p, BufferView norm) const = 0;
  // Multiplies all values by min(1, limit / (root + 1e-6)), where root is the p-th root of the number in `norm`, as
  // torch.nn.utils.clip_grad_norm_ does.
  virtual void clip(DType, std::span<const BufferView> values, double p, double limit, BufferView norm) const = 0;

  // Sequences `first` and the following: from the reader, or synthetic where there is no reader.
  virtual void batch(const TokenReader&, std::uint64_t seed, std::int64_t first, const Workload&, std::int64_t vocab,
                     BufferView ids, BufferView targets) const = 0;
  // As fill_initial_values of executor/data/synthetic.h.
  virtual void initial_values(std::uint64_t seed, const Parameter&, std::int64_t begin, std::int64_t count, DType,
                              std::byte* to) const = 0;
  virtual void read_state(const StateReader&, const Parameter&, StatePart, const Slab&, DType, std::byte* to) const = 0;

 protected:
  ~KernelSet() = default;  // nobody owns a kernel set through this interface
};

}  // namespace fsdp
