// What happens to a unit's gradients over tensor ranks before FSDP reduces them: T5 of docs/fsdp-order.md.
#include <array>
#include <utility>

#include "planner/lowering/fsdp2_reduce.h"
#include "planner/lowering/step/over_tensor.h"

namespace fsdp {

void Fsdp2Reduce::reduce_over_tensor(StepBuilder& b, std::int32_t u) {
  if (units_.c.plan.tensor() == 1) return;
  Fsdp2Unit& s = units_[u];
  bool native = false;  // gradients in their own dtype beside accumulators
  for (std::size_t i = 0; i < s.gradient.size(); ++i) {
    std::int32_t& g = s.accumulator[i] >= 0 ? s.accumulator[i] : s.gradient[i];
    if (g < 0) continue;
    native = native || s.accumulator[i] < 0;
    const TensorGradient kind = parameter_of(u, i).tensor_gradient;
    if (kind == TensorGradient::local) continue;
    const ShardedParam& p = units_.layout(u).params[i];
    const bool accumulated = s.accumulator[i] >= 0;
    const BufferKind of = accumulated ? BufferKind::gradient_accumulator : BufferKind::gradient;
    const std::int32_t made = b.allocate_new(
        units_.buffer(p.numel(), accumulated ? reduce_dtype(u) : gradient_dtype(u), of, Stream::compute, u, p.param));
    const std::array<Arg, 2> args = {Arg{g}, Arg{made, Access::write}};
    if (kind == TensorGradient::partial)
      OverTensor::issue_and_wait(b, units_.op(Action::all_reduce, Stream::tensor, u), args);
    else b.issue(units_.op(Action::slice_gradient, Stream::compute, u), args);
    b.release(std::exchange(g, made));
  }
  if (!native) return;
  for (std::size_t i = 0; i < s.gradient.size(); ++i)
    if (s.gradient[i] < 0) s.gradient[i] = std::exchange(s.accumulator[i], kNone);
}

}  // namespace fsdp
