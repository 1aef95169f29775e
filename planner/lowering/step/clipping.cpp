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

namespace {

Operation over_gradients(const ShardingPlan& plan, Action action) {
  Operation o = operation(action);
  o.host_only = plan.offload;
  return o;
}

// A number: of these gradients, over the ranks of the communicator. `summed`: operations that the host may wait for.
std::int32_t norm_over(StepBuilder& b, const ShardingPlan& plan, std::span<const std::int32_t> gradients,
                       Communicator comm, std::vector<std::int32_t>& summed) {
  std::vector<Arg> args;
  for (const std::int32_t g : gradients) args.push_back({g});
  Buffer sum = scalar_buffer();
  sum.host = plan.offload;
  const std::int32_t norm = b.allocate_new(sum);
  args.push_back({norm, Access::write});
  b.issue(over_gradients(plan, Action::clip_local_norm), args);
  Operation reduce = operation(Action::clip_reduce);
  reduce.comm = comm;
  summed.push_back(b.issue(reduce, {{Arg{norm, Access::accumulate}}}));
  return norm;
}

}  // namespace

void clip_gradients(StepBuilder& b, const ShardingPlan& plan, std::span<const std::int32_t> gradients,
                    std::span<const std::int32_t> own, std::int16_t micro_batch) {
  std::vector<std::int32_t> norms, summed;
  if (!own.empty()) norms.push_back(norm_over(b, plan, own, Communicator::own_shard, summed));
  if (!gradients.empty() || own.empty()) norms.push_back(norm_over(b, plan, gradients, Communicator::shard, summed));
  if (plan.tensor() > 1)
    OverTensor::issue_and_wait(b, operation(Action::clip_reduce), {{Arg{norms.back(), Access::accumulate}}});
  if (plan.offload) b.host_wait(summed, micro_batch);
  std::vector<Arg> args;
  for (const std::int32_t norm : norms) args.push_back({norm, norms.size() > 1 ? Access::accumulate : Access::read});
  for (const auto& buffers : {own, gradients})
    for (const std::int32_t g : buffers) args.push_back({g, Access::accumulate});
  b.issue(over_gradients(plan, Action::clip_scale), args);
  for (const std::int32_t norm : norms) b.release(norm);
}

}  // namespace fsdp
