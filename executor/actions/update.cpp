// What happens to sharded gradients: clipping and the optimizer.
#include "executor/actions/actions.h"
#include "models/input/error.h"

namespace fsdp::actions {
namespace {

// Is a parameter's gradient the same on every rank of a tensor group, and this rank not the group's first?
bool counted_elsewhere(const KernelCall& c, const UnitLayout& layout, const TrainedPart& part) {
  if (tensor_rank(c) == 0) return false;
  for (const ShardedParam& p : layout.params)
    if (p.trainable && p.offset == part.shard) return parameter(c, p.param).tensor_gradient == TensorGradient::partial;
  return false;
}

// What this rank holds of the gradients, without padding and without what is not trained. `once`: of what several ranks
// of a tensor group hold alike, only the first of them takes it.
std::vector<BufferView> gradients_of(const KernelCall& c, std::size_t first, std::size_t count, bool once) {
  const DType type = c.plan.master_dtype;
  const std::int64_t width = size_of(type);
  std::vector<BufferView> parts;
  for (std::size_t i = first; i < first + count; ++i) {
    const Buffer& buffer = buffer_of(c, i);
    if (buffer.unit < 0) {  // ignored: whole on every rank
      expect_elements(c.views[i], parameter(c, buffer.param).numel(), type, "gradient");
      parts.push_back(c.views[i]);
      continue;
    }
    const UnitLayout& layout = c.program.layouts.at(at(buffer.unit));
    const GradientPlaces places = gradient_places(c, i);
    const std::int64_t rank = layout.shard_index(c.plan, c.rank);
    expect_elements(c.views[i], gradient_elements(layout, rank, places), type, "sharded gradient");
    for_each_trained(layout, rank, places, [&](const TrainedPart& p) {
      if (once && counted_elsewhere(c, layout, p)) return;
      parts.push_back({c.views[i].data + p.gradient * width, p.elements * width});
    });
  }
  return parts;
}

}  // namespace

KernelBody clip_local_norm(const KernelCall& c, const KernelSet& kernels) {
  if (c.views.empty()) expect_args(c, 1);
  expect_elements(c.views.back(), 1, DType::f64, "norm");
  return [&kernels, gradients = gradients_of(c, 0, c.views.size() - 1, /*once=*/true), type = c.plan.master_dtype,
          p = c.plan.clip_norm_type, norm = c.views.back()] { kernels.local_norm(type, gradients, p, norm); };
}

// The norms of parts come first: their sums of powers are added.
KernelBody clip_scale(const KernelCall& c, const KernelSet& kernels) {
  if (c.views.empty()) expect_args(c, 1);
  expect_elements(c.views[0], 1, DType::f64, "norm");
  const bool two = c.views.size() > 1 && buffer_of(c, 1).kind == BufferKind::scalar;
  if (two) expect_elements(c.views[1], 1, DType::f64, "norm");
  const std::size_t first = two ? 2 : 1;
  return [&kernels, gradients = gradients_of(c, first, c.views.size() - first, /*once=*/false),
          type = c.plan.master_dtype, norm = c.views[0], other = two ? c.views[1] : BufferView{},
          limit = c.plan.clip_norm.value_or(0), p = c.plan.clip_norm_type] {
    if (other.data != nullptr) kernels.convert(DType::f64, other, DType::f64, norm, 1, /*add=*/true);
    kernels.clip(type, gradients, p, limit, norm);
  };
}

KernelBody optimizer_step(const KernelCall& c, const KernelSet& kernels) {
  if (c.views.size() != 4 && c.views.size() != 5) expect_args(c, 4);  // the fifth: scratch of other implementations
  const DType type = c.plan.master_dtype;
  auto [layout, rank] = layout_held(c);
  const GradientPlaces places = c.op.unit < 0 ? GradientPlaces::as_shard : gradient_places(c, 0);
  expect_elements(c.views[0], gradient_elements(layout, rank, places), type, "sharded gradient");
  expect_elements(c.views[1], layout.shard_elements, type, "parameter shard");
  const auto states = static_cast<std::size_t>(state_count(c.plan.optimizer));
  for (std::size_t i = 2; i < 2 + states; ++i)
    expect_elements(c.views[i], layout.local_trained_elements(rank), type, "optimizer state");
  Optimizer settings = c.plan.optimizer;
  if (c.training.learning_rate) settings.lr = c.training.learning_rate(c.step);
  return [&kernels, layout = std::move(layout), places, type, rank = rank, states, settings, step = c.step + 1,
          views = c.views] {
    OptimizerUpdate update{layout, rank, settings, step, type, views[0], views[1]};
    update.places = places;
    if (states > 0) update.state1 = views[2];
    if (states > 1) update.state2 = views[3];
    switch (settings.kind) {
      case OptimizerKind::adamw: return kernels.adamw(update);
      case OptimizerKind::sgd: return kernels.sgd(update);
      case OptimizerKind::adamw_8bit: break;
    }
    throw MachineError(std::string("no kernel computes ") + std::string(name(settings.kind)));
  };
}

}  // namespace fsdp::actions
