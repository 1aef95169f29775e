#include "planner/lowering/step/clipping.h"

#include <vector>

#include "planner/lowering/step/over_tensor.h"

namespace fsdp {

Buffer scalar_buffer() {
  Buffer info;
  info.bytes = 8;
  info.dtype = DType::f64;
  info.kind = BufferKind::scalar;
  return info;
}

void clip_gradients(StepBuilder& b, const ShardingPlan& plan, std::span<const std::int32_t> gradients,
                    std::int16_t micro_batch) {
  const auto over_gradients = [&](Action action) {
    Operation o = operation(action);
    o.host_only = plan.offload;
    return o;
  };
  std::vector<Arg> args;
  for (const std::int32_t g : gradients) args.push_back({g});
  Buffer sum = scalar_buffer();
  sum.host = plan.offload;
  const std::int32_t norm = b.allocate_new(sum);
  std::vector<Arg> with_norm(args);
  with_norm.push_back({norm, Access::write});
  b.issue(over_gradients(Action::clip_local_norm), with_norm);
  Operation reduce = operation(Action::clip_reduce);
  reduce.comm = Communicator::shard;
  const std::int32_t summed = b.issue(reduce, {{Arg{norm, Access::accumulate}}});
  if (plan.tensor() > 1)
    OverTensor::issue_and_wait(b, operation(Action::clip_reduce), {{Arg{norm, Access::accumulate}}});
  if (plan.offload) b.host_wait({{summed}}, micro_batch);
  for (Arg& a : args) a.access = Access::accumulate;
  args.insert(args.begin(), {norm});
  b.issue(over_gradients(Action::clip_scale), args);
  b.release(norm);
}

}  // namespace fsdp
