#include "planner/lowering/ignored.h"

namespace fsdp {

IgnoredParameters::IgnoredParameters(const LoweringContext& context) : c_(context) {
  const std::vector<std::int32_t> unit_of = unit_of_parameters(c_.program.layouts, c_.model);
  for (std::size_t p = 0; p < unit_of.size(); ++p)
    if (unit_of[p] < 0) owned_[static_cast<std::int32_t>(p)] = {};
}

Buffer IgnoredParameters::buffer(std::int32_t param, BufferKind kind) const {
  Buffer info;
  const Parameter& parameter = c_.model.parameters[static_cast<std::size_t>(param)];
  info.dtype = c_.plan.kept_dtype(parameter.trainable);
  info.bytes = parameter.numel() * size_of(info.dtype);
  info.kind = kind;
  info.param = param;
  return info;
}

void IgnoredParameters::init(StepBuilder& b) {
  for (auto& [param, o] : owned_) {
    o.value = b.allocate_new(buffer(param, BufferKind::parameter_shard));
    if (c_.model.parameters[static_cast<std::size_t>(param)].trainable)
      o.gradient = b.declare(buffer(param, BufferKind::sharded_gradient));
    b.issue(operation(Action::init_parameters), {{Arg{o.value, Access::write}}});
  }
}

void IgnoredParameters::begin_step(StepBuilder& b) {
  bool any = false;
  for (const auto& [param, o] : owned_) any = any || o.live;
  if (!any) return;
  Operation zero = operation(Action::zero_gradients);
  zero.host_only = true;
  b.issue(zero, {});
  for (auto& [param, o] : owned_) {
    if (o.live) b.release(o.gradient);
    o.live = false;
  }
}

Arg IgnoredParameters::gradient(StepBuilder& b, std::int32_t param) {
  Owned& o = owned_.at(param);
  if (o.live) return {o.gradient, Access::accumulate};
  b.allocate(o.gradient);
  o.live = true;
  return {o.gradient, Access::write};
}

std::vector<std::int32_t> IgnoredParameters::gradients() const {
  std::vector<std::int32_t> buffers;
  for (const Live& l : live()) buffers.push_back(l.gradient);
  return buffers;
}

std::vector<IgnoredParameters::Live> IgnoredParameters::live() const {
  std::vector<Live> all;
  for (const auto& [param, o] : owned_)
    if (o.live) all.push_back({param, o.gradient, o.value});
  return all;
}

std::vector<std::int32_t> gradients_of(const DialectHooks& dialect, const Program& program,
                                       const IgnoredParameters& ignored, bool own_mesh) {
  std::vector<std::int32_t> buffers;
  for (std::size_t u = 0; u < program.layouts.size(); ++u) {
    const std::int32_t g = dialect.sharded_gradient(static_cast<std::int32_t>(u));
    if (g >= 0 && program.layouts[u].own_mesh == own_mesh) buffers.push_back(g);
  }
  if (own_mesh) return buffers;
  for (const std::int32_t g : ignored.gradients()) buffers.push_back(g);
  return buffers;
}

}  // namespace fsdp
