#include "planner/layout.h"

#include <algorithm>
#include <cmath>

#include "models/input/error.h"
#include "models/input/limits.h"
#include "models/units.h"
#include "planner/layout/flat.h"
#include "planner/tensor/float8.h"

namespace fsdp {
namespace {

// modules[i]'s subtree is modules[i, end[i]): modules are stored in pre-order.
std::vector<std::int32_t> subtree_ends(const ModelGraph& model) {
  const auto n = static_cast<std::int32_t>(model.modules.size());
  std::vector<std::int32_t> end(model.modules.size());
  for (std::int32_t i = n - 1; i >= 0; --i) {
    end[i] = std::max(end[i], i + 1);
    const std::int32_t parent = model.modules[i].parent;
    if (parent >= 0) end[parent] = std::max(end[parent], end[i]);
  }
  return end;
}

struct Tensors {  // by tensor
  // It depends on a trained parameter, and the loss depends on it: autograd makes gradients of those alone.
  std::vector<char> in_backward;
  std::vector<std::int32_t> made_by;  // the op, one at most (models/graph/check.cpp); kNone: an input of the model
};

Tensors tensors_of(const ModelGraph& model) {
  std::vector<char> in(model.tensors.size(), 0);
  std::vector<std::int32_t> made_by(model.tensors.size(), kNone);
  for (std::size_t i = 0; i < model.ops.size(); ++i)
    for (const std::int32_t t : model.ops[i].outputs) made_by[t] = static_cast<std::int32_t>(i);
  for (const Op& op : model.ops) {
    bool any = op.kind == OpKind::embedding;  // if its result requires one (require_input_gradients)
    for (const std::int32_t t : op.inputs) any = any || in[t] != 0;
    for (const std::int32_t p : op.params) any = any || model.parameters[p].trainable;
    for (const std::int32_t t : op.outputs) in[t] = any && model.tensors[t].requires_grad ? 1 : 0;
  }
  std::vector<char> needed(model.tensors.size(), 0);
  for (auto op = model.ops.rbegin(); op != model.ops.rend(); ++op) {
    const bool any =
        op == model.ops.rbegin() ||  // the loss
        std::any_of(op->outputs.begin(), op->outputs.end(), [&](std::int32_t t) { return needed[t] != 0; });
    for (const std::int32_t t : op->inputs) needed[t] = needed[t] != 0 || any ? 1 : 0;
  }
  for (const std::int32_t t : model.ops.empty() ? std::vector<std::int32_t>{} : model.ops.back().outputs) needed[t] = 1;
  for (std::size_t t = 0; t < in.size(); ++t) in[t] = in[t] != 0 && needed[t] != 0 ? 1 : 0;
  return {std::move(in), std::move(made_by)};
}

bool makes_gradients(std::int32_t op, const ModelGraph& model, const Tensors& tensors) {
  const std::vector<std::int32_t>& outputs = model.ops[op].outputs;
  return std::any_of(outputs.begin(), outputs.end(), [&](std::int32_t t) { return tensors.in_backward[t] != 0; });
}

// By parameter: is it trained, and does a gradient reach it?
std::vector<char> parameters_with_gradient(const ModelGraph& model, const Tensors& tensors) {
  std::vector<char> has(model.parameters.size(), 0);
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    if (!makes_gradients(static_cast<std::int32_t>(i), model, tensors)) continue;
    for (const std::int32_t p : model.ops[i].params) has[p] = model.parameters[p].trainable ? 1 : 0;
  }
  return has;
}

// Is there an op among [op_begin, op_end) that reads a tensor made outside of it which takes part in backward?
bool needs_input_gradient(std::int32_t op_begin, std::int32_t op_end, const ModelGraph& model, const Tensors& tensors) {
  const auto made_inside = [&](std::int32_t t) {
    return tensors.made_by[t] >= op_begin && tensors.made_by[t] < op_end;
  };
  for (std::int32_t i = op_begin; i < op_end; ++i) {
    if (!makes_gradients(i, model, tensors)) continue;
    for (const std::int32_t t : model.ops[i].inputs)
      if (tensors.in_backward[t] != 0 && !made_inside(t)) return true;
  }
  return false;
}

void set_op_range(UnitLayout& layout, const std::vector<std::int32_t>& ids, const ModelGraph& model,
                  const Tensors& tensors) {
  const Module* first = nullptr;
  for (const std::int32_t id : ids) {
    const Module& m = model.modules[id];
    if (m.op_begin == m.op_end) continue;
    layout.op_end = std::max(layout.op_end, m.op_end);
    if (first == nullptr || m.op_begin < first->op_begin) first = &m;
  }
  if (first != nullptr) layout.op_begin = first->op_begin;
  if (!ids.empty() && ids.front() == 0 && !model.ops.empty()) {  // the whole model: everything but the loss
    layout.op_begin = 0;
    layout.op_end = static_cast<std::int32_t>(model.ops.size()) - 1;
  }
  layout.inputs_require_grad = first != nullptr && needs_input_gradient(first->op_begin, first->op_end, model, tensors);
  if (layout.op_end > layout.op_begin) layout.outputs_require_grad = makes_gradients(layout.op_end - 1, model, tensors);
}

// The runs of ops inside a unit of one module [begin, end of its subtree); of any other unit its whole range.
void set_uses(UnitLayout& layout, std::int32_t module, std::int32_t end, const ModelGraph& model,
              const Tensors& tensors) {
  if (layout.op_end <= layout.op_begin) return;
  if (module <= 0) {
    layout.uses = {{layout.op_begin, layout.op_end, layout.inputs_require_grad, layout.outputs_require_grad}};
    return;
  }
  const auto inside = [&](std::int32_t op) { return model.ops[op].module >= module && model.ops[op].module < end; };
  for (std::int32_t i = layout.op_begin; i < layout.op_end; ++i) {
    if (!inside(i)) continue;
    if (i == layout.op_begin || !inside(i - 1)) layout.uses.push_back({i, i, false, false});
    layout.uses.back().op_end = i + 1;
  }
  for (UnitUse& use : layout.uses) {
    use.inputs_require_grad = needs_input_gradient(use.op_begin, use.op_end, model, tensors);
    use.outputs_require_grad = makes_gradients(use.op_end - 1, model, tensors);
  }
}

// W and R of a unit, and the unit that it is a further group of: the innermost one around it, which comes later.
void set_mesh(UnitLayout& layout, const ShardingPlan& plan, std::size_t u) {
  const Unit& unit = plan.units[u];
  layout.own_mesh = unit.shard > 0;
  layout.shards = plan.dialect == Dialect::ddp ? 1 : std::max<std::int64_t>(1, plan.shard());
  if (layout.own_mesh) layout.shards = unit.shard;
  layout.replicas = plan.data_ranks() / layout.shards;
  if (!unit.group_of) return;
  for (std::size_t k = u + 1; k < plan.units.size() && layout.group_of < 0; ++k)
    if (!plan.units[k].group_of && !plan.units[k].modules.empty() && plan.units[k].modules.front() == *unit.group_of)
      layout.group_of = static_cast<std::int32_t>(k);
}

// A further group of a unit computes when the unit does, and has no hooks by itself.
void run_with(UnitLayout& group, const UnitLayout& unit) {
  group.op_begin = unit.op_begin;
  group.op_end = unit.op_end;
  group.inputs_require_grad = unit.inputs_require_grad;
  group.outputs_require_grad = unit.outputs_require_grad;
  group.root = unit.root;
  group.root_of = unit.root_of;
  group.uses.clear();
}

// Parameters that the plan ignores: named themselves, or inside a named module and of no module outside of those.
std::vector<char> ignored_parameters(const PlanIds& ids, const ModelGraph& model,
                                     const std::vector<std::int32_t>& end) {
  std::vector<char> ignored(model.parameters.size(), 0), module(model.modules.size(), 0);
  for (const std::int32_t id : ids.ignored_modules)
    for (std::int32_t m = id; m < end[id]; ++m) module[m] = 1;
  for (const std::int32_t p : ids.ignored_parameters) ignored[p] = 1;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const std::vector<std::int32_t>& owners = model.parameters[p].modules;
    if (std::any_of(owners.begin(), owners.end(), [&](std::int32_t m) { return module[m] != 0; })) ignored[p] = 1;
  }
  return ignored;
}

ShardedParam sharded(std::int32_t id, const Parameter& p, bool trainable, std::int64_t dim, const UnitLayout& layout,
                     std::string_view plan) {
  ShardedParam s;
  s.param = id;
  s.dim = dim;
  s.trainable = trainable;
  s.rows = p.shape.empty() ? 1 : p.shape[static_cast<std::size_t>(dim)];
  s.row_elements = 1;
  for (std::size_t d = 0; d < p.shape.size(); ++d)
    if (d != static_cast<std::size_t>(dim)) s.row_elements = checked_mul(s.row_elements, p.shape[d], p.name);
  if (dim > 0 && s.rows % layout.shards != 0)
    throw InputError({std::string(plan), "shard_dims"},
                     "dimension " + std::to_string(dim) + " of '" + p.name + "' has size " + std::to_string(s.rows) +
                         ", which " + std::to_string(layout.shards) + " ranks do not divide",
                     "shard another dimension (only dimension 0 can be padded)");
  s.chunk_rows = s.rows / layout.shards + (s.rows % layout.shards != 0 ? 1 : 0);
  s.offset = layout.shard_elements;
  return s;
}

// A padded whole takes up to one row more per rank than the parameter has. All units may be whole at once.
void check_padded(const std::vector<UnitLayout>& layouts, std::string_view where) {
  std::int64_t shard = 0, shards = 1;
  for (const UnitLayout& l : layouts) {
    shard = checked_add(shard, l.shard_elements, "padded shards");
    shards = std::max(shards, l.shards);
  }
  if (shard > kMostElements / shards)
    throw InputError({std::string(where), "mesh"},
                     with_commas(shards) + " padded shards of " + with_commas(shard) + " elements are more than " +
                         with_commas(kMostElements) + " elements",
                     "shard over fewer ranks");
}

}  // namespace

std::int64_t UnitLayout::local_elements(std::int64_t shard_rank) const {
  if (flat_elements > 0) return flat_local_elements(*this, shard_rank);
  std::int64_t sum = 0;
  for (const ShardedParam& p : params) sum += p.local_elements(shard_rank);
  return sum;
}

std::int64_t UnitLayout::local_trained_elements(std::int64_t shard_rank) const {
  if (flat_elements > 0) return trained() ? flat_local_elements(*this, shard_rank) : 0;
  std::int64_t sum = 0;
  for (const ShardedParam& p : params) sum += p.trainable ? p.local_elements(shard_rank) : 0;
  return sum;
}

std::int64_t UnitLayout::float8_elements() const {
  std::int64_t sum = 0;
  for (const ShardedParam& p : params) sum += p.float8 ? p.padded_shard() : 0;
  return sum;
}

std::int64_t UnitLayout::shard_begin(std::size_t i) const {
  if (flat_elements > 0) return (i < params.size() ? params[i].offset : shard_elements) * size_of(params.front().kept);
  std::int64_t bytes = 0;
  for (std::size_t k = 0; k < i; ++k) bytes += params[k].padded_shard() * size_of(params[k].kept);
  return bytes;
}

std::int64_t UnitLayout::cast_elements() const {
  if (flat_elements > 0) return params.front().kept != param_dtype ? shard_elements : 0;
  std::int64_t sum = 0;
  for (const ShardedParam& p : params) sum += p.kept != param_dtype ? p.padded_shard() : 0;
  return sum;
}

std::int64_t UnitLayout::gathered_bytes() const {
  const std::int64_t float8 = float8_elements();
  return (shard_elements - float8) * size_of(param_dtype) + float8;
}

GradientScale gradient_scale(std::int64_t shards, std::int64_t replicas, DType reduce_dtype,
                             std::optional<double> divide_factor, bool force_sum) {
  GradientScale s;
  const std::int64_t ranks = shards * replicas;
  const bool may_overflow = reduce_dtype != DType::f32 && reduce_dtype != DType::bf16;
  if (shards == 1 && divide_factor) s.divide_copy = *divide_factor;
  if (!may_overflow && !force_sum) {
    if (!divide_factor) {
      if (ranks == 1) s.reduce_scatter = s.all_reduce = ReduceOp::sum;
      return s;
    }
    s.all_reduce = ReduceOp::sum;
    if (*divide_factor == static_cast<double>(shards)) return s;
    s.reduce_scatter = ReduceOp::scaled_sum;
    s.multiply = 1 / *divide_factor;
    return s;
  }
  s.reduce_scatter = s.all_reduce = ReduceOp::sum;
  const double factor = divide_factor.value_or(static_cast<double>(ranks));
  if (may_overflow)
    while (std::fmod(factor, s.divide_before) == 0 && factor / s.divide_before > s.divide_before) s.divide_before *= 2;
  s.divide_after = factor / s.divide_before;
  return s;
}

namespace {

// Before PyTorch 2.10 a factor of all ranks is the average, and any other a scaled sum. Before 2.9 one rank averages,
// as all others do.
GradientScale scale_of(const ShardingPlan& plan, const Unit& unit, const UnitLayout& layout) {
  const std::int64_t shards = layout.shards, ranks = shards * layout.replicas;
  std::optional<double> factor = unit.gradient_divide_factor;
  const bool of_all_ranks = plan.torch.before(2, 10) && factor == static_cast<double>(ranks);
  if (of_all_ranks) factor.reset();
  GradientScale s = gradient_scale(shards, layout.replicas, layout.reduce_dtype, factor, plan.force_sum_reduction);
  const bool scaled = s.all_reduce == ReduceOp::sum && s.reduce_scatter == ReduceOp::average;
  if (plan.torch.before(2, 10) && scaled) {
    s.reduce_scatter = ReduceOp::scaled_sum;
    s.multiply = 1 / *factor;
  }
  const bool averages =
      !factor && !plan.force_sum_reduction && size_of(layout.reduce_dtype) <= 4 && layout.reduce_dtype != DType::f16;
  return averages && plan.torch.before(2, 9) ? GradientScale{} : s;
}

}  // namespace

std::vector<UnitLayout> unit_layouts(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model,
                                     std::string_view where) {
  const std::vector<std::int32_t> end = subtree_ends(model);
  const auto none = static_cast<std::int32_t>(plan.units.size());
  std::vector<std::int32_t> unit_of_module(model.modules.size(),
                                           none);                    // the first (innermost) unit that holds the module
  std::vector<std::int32_t> outermost(model.modules.size(), kNone);  // and the last one
  const Tensors tensors = tensors_of(model);
  const std::vector<char> ignored = ignored_parameters(ids, model, end);
  const std::vector<char> has_gradient = parameters_with_gradient(model, tensors);
  const std::vector<char> float8 = float8_gathered(model, plan.float8);
  std::vector<UnitLayout> layouts(plan.units.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    UnitLayout& layout = layouts[u];
    set_mesh(layout, plan, u);
    const std::vector<std::int32_t>& modules = ids.units[u];
    for (const std::int32_t id : modules) {
      for (std::int32_t m = id; m < end[id]; ++m) {
        unit_of_module[m] = std::min(unit_of_module[m], static_cast<std::int32_t>(u));
        outermost[m] = static_cast<std::int32_t>(u);
      }
    }
    set_op_range(layout, modules, model, tensors);
    const bool one = plan.dialect != Dialect::ddp && modules.size() == 1;
    set_uses(layout, one ? modules.front() : -1, one ? end[modules.front()] : -1, model, tensors);
    layout.param_dtype = plan.param_dtype_of(u), layout.reduce_dtype = plan.reduce_dtype_of(u);
  }
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    layouts[u].root_of = ids.units[u].empty() ? kNone : outermost[ids.units[u].front()];
    layouts[u].root = layouts[u].root_of == static_cast<std::int32_t>(u);
  }
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    UnitLayout& layout = layouts[u];
    if (layout.group_of >= 0) run_with(layout, layouts[static_cast<std::size_t>(layout.group_of)]);
    const Unit& switches = switches_of(plan, layout, static_cast<std::int32_t>(u));
    if (plan.dialect == Dialect::fsdp2) layout.scale = scale_of(plan, switches, layout);
  }
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    if (ignored[p]) continue;
    const Parameter& parameter = model.parameters[p];
    std::int32_t unit = none;  // tied: the unit that comes first to any of its owners
    for (const std::int32_t owner : parameter.modules) unit = std::min(unit, unit_of_module[owner]);
    if (plan.trained_outermost && parameter.trainable) unit = static_cast<std::int32_t>(layouts.size()) - 1;
    if (unit == none) {
      throw InputError({std::string(where), "units"}, "no unit holds parameter '" + parameter.name + "'",
                       "add the root unit {\"\"} as the last one");
    }
    UnitLayout& layout = layouts[unit];
    layout.params.push_back(
        sharded(static_cast<std::int32_t>(p), parameter, has_gradient[p] != 0, ids.shard_dims[p], layout, where));
    layout.params.back().float8 = float8[p] != 0;
    layout.params.back().kept = plan.kept_dtype(parameter.trainable);
    layout.shard_elements = checked_add(layout.shard_elements, layout.params.back().padded_shard(), parameter.name);
    if (has_gradient[p] != 0) layout.reduce_elements += layout.params.back().padded_shard();
    layout.numel = checked_add(layout.numel, layout.params.back().numel(), parameter.name);
  }
  if (plan.dialect == Dialect::fsdp1) flatten_layouts(layouts, plan, model);
  check_padded(layouts, where);
  return layouts;
}

std::vector<UnitLayout> unit_layouts(const ShardingPlan& plan, const ModelGraph& model) {
  return unit_layouts(plan, resolve_ids(plan, model), model);
}

UnitLayout whole_parameter(std::int32_t id, const Parameter& parameter) {
  ShardedParam p;
  p.param = id;
  p.rows = p.chunk_rows = parameter.shape.empty() ? 1 : parameter.shape.front();
  p.row_elements = 1;
  for (std::size_t d = 1; d < parameter.shape.size(); ++d) p.row_elements *= parameter.shape[d];
  UnitLayout layout;
  layout.shard_elements = layout.reduce_elements = layout.numel = p.numel();
  layout.params = {p};
  return layout;
}

std::vector<std::int32_t> unit_of_parameters(const std::vector<UnitLayout>& layouts, const ModelGraph& model) {
  std::vector<std::int32_t> unit_of(model.parameters.size(), -1);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    for (const ShardedParam& p : layouts[u].params) unit_of[p.param] = static_cast<std::int32_t>(u);
  }
  return unit_of;
}

}  // namespace fsdp
