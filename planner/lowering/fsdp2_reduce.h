// From gradients to sharded gradients in the `fsdp2` dialect (AccumulateGrad, FSDPParamGroup.post_backward,
// foreach_reduce).
#pragma once

#include <cstdint>
#include <deque>

#include "planner/lowering/fsdp2_units.h"

namespace fsdp {

class Fsdp2Reduce {
 public:
  explicit Fsdp2Reduce(Fsdp2Units& units);

  void init(StepBuilder&, std::int32_t u);  // declares what lives from step to step
  void begin_step() {
    held_outputs_.clear();
    inputs_.clear();
  }
  void begin_backward(int forwards) {  // of so many, or of a part of one
    forwards_ = forwards;
    for (const std::int32_t u : units_.forward_order)
      for (std::size_t i = 0; i < units_[u].uses.size(); ++i)
        units_[u].uses[i] = uses_of(units_.layout(u).params[i].param);
  }
  // The gradient that a kernel writes or adds to, and what follows when autograd has added up all uses of the
  // parameter.
  Arg gradient(StepBuilder&, std::int32_t u, std::size_t i);
  void after_gradient(StepBuilder&, std::int32_t u, std::size_t i);
  // Before PyTorch 2.15: gradients are converted or added when the unit's backward is over.
  void accumulate_late(StepBuilder&, std::int32_t u, bool only_into_existing);
  // Of a model that is split over tensor ranks: gradients of parameters that every rank holds are summed, and of one
  // that came out whole this rank takes its part, parameter by parameter and before the unit is resharded.
  void reduce_over_tensor(StepBuilder&, std::int32_t u);
  // Rules B6c to B6i of docs/fsdp-order.md.
  void reduce(StepBuilder&, std::int32_t u);
  // The end of a root's backward, for one unit: D waits for its reduction; so does the host where gradients go to host
  // memory.
  void finalize(StepBuilder&, std::int32_t u);
  void end_backward(StepBuilder&, std::int32_t root);

 private:
  void accumulate(StepBuilder&, std::int32_t u, std::ptrdiff_t only);
  bool accumulates_now(std::int32_t u, std::size_t i) const;
  [[nodiscard]] const Parameter& parameter_of(std::int32_t u, std::size_t i) const {
    return units_.c.model.parameters[at(units_.layout(u).params[i].param)];
  }
  [[nodiscard]] std::int64_t gradient_elements(std::int32_t u, std::size_t i) const {
    return units_.c.model.gradient_numel(units_.layout(u).params[i].param);
  }
  bool casts_each_use(std::int32_t u, std::size_t i) const;
  void cast_use(StepBuilder&, std::int32_t u, std::size_t i);
  void limit_inputs(StepBuilder&, std::size_t at_most);
  void reduce_gradients(StepBuilder&, std::int32_t u);
  std::int32_t copy_in(StepBuilder&, std::int32_t u, std::int32_t input);
  void reorder(StepBuilder&, std::int32_t u, std::vector<std::int32_t>& source, bool accumulated);
  bool stays(const std::vector<std::int32_t>& source, std::int32_t u, std::size_t i) const;
  void divide(StepBuilder&, std::int32_t u, Stream, std::int32_t buffer, double by);
  std::int32_t scatter(StepBuilder&, std::int32_t u, std::int32_t input, std::int32_t out);
  bool replicate_sum(StepBuilder&, std::int32_t u, std::int32_t out);
  void finish(StepBuilder&, std::int32_t u, std::int32_t out, bool keeps);
  void release_outputs(StepBuilder&, std::int32_t u);
  void finish_on_host(StepBuilder&, std::int32_t u, std::int32_t out);
  [[nodiscard]] Stream last_stream(std::int32_t u) const {
    return units_.hsdp(u) ? Stream::all_reduce : Stream::reduce_scatter;
  }

  struct Input {
    std::int32_t buffer = kNone, op = kNone;
  };
  struct Held {
    std::int32_t unit = kNone, buffer = kNone;
  };
  struct Copy {
    std::int32_t unit = kNone, op = kNone;
  };
  Fsdp2Units& units_;
  const DType master_dtype_;
  [[nodiscard]] DType reduce_dtype(std::int32_t u) const { return units_.reduce_dtype(u); }
  [[nodiscard]] DType gradient_dtype(std::int32_t u) const { return units_.param_dtype(u); }
  const bool early_;  // gradients get their dtype from autograd as they are made (since PyTorch 2.15)
  [[nodiscard]] int uses_of(std::int32_t param) const { return uses_[at(param)] * forwards_; }

  std::vector<int> uses_;  // by parameter: kernels of one forward that make a part of its gradient
  int forwards_ = 1;       // of the backward at hand
  // By parameter: the weight of a norm that is written out as several operators. Its gradient is made first, and
  // autograd has cast it (B6a) when the others run: `wider_` is what the cast adds while they do.
  std::vector<char> comes_first_;
  std::int32_t wider_ = kNone;
  std::deque<Input> inputs_;        // of reduce-scatters in flight
  std::vector<std::int32_t> late_;  // freed when the reduction at hand has been issued
  std::vector<Held> held_outputs_;  // R's pool, used on A: kept until D has waited at the end of backward
  std::vector<Copy> to_host_;       // the host waits for them at the end of backward
};

}  // namespace fsdp
