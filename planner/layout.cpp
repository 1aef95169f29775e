#include "planner/layout.h"

#include <algorithm>

#include "models/error.h"
#include "models/units.h"

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

std::vector<std::int32_t> module_ids(const Unit& unit, const ModelGraph& model, std::size_t index) {
  std::vector<std::int32_t> ids;
  for (const std::string& name : unit.modules) {
    const std::int32_t id = model.find_module(name);
    if (id < 0) {
      throw InputError("plan: units[" + std::to_string(index) + "].modules", "no module is named '" + name + "'",
                       "run `fsdp-plan show model NAME` for the names");
    }
    ids.push_back(id);
  }
  return ids;
}

// Is there an op of `module` that reads a tensor made outside of it which takes part in backward?
bool needs_input_gradient(const Module& module, const ModelGraph& model) {
  std::vector<char> made_inside(model.tensors.size(), 0);
  for (std::int32_t i = module.op_begin; i < module.op_end; ++i) {
    for (const std::int32_t t : model.ops[i].outputs) made_inside[t] = 1;
  }
  for (std::int32_t i = module.op_begin; i < module.op_end; ++i) {
    for (const std::int32_t t : model.ops[i].inputs) {
      if (!made_inside[t] && model.tensors[t].requires_grad) return true;
    }
  }
  return false;
}

void set_op_range(UnitLayout& layout, const std::vector<std::int32_t>& ids, const ModelGraph& model) {
  const Module* first = nullptr;
  for (const std::int32_t id : ids) {
    const Module& m = model.modules[id];
    if (m.op_begin == m.op_end) continue;
    layout.op_end = std::max(layout.op_end, m.op_end);
    if (first == nullptr || m.op_begin < first->op_begin) first = &m;
  }
  if (first != nullptr) layout.op_begin = first->op_begin;
  if (layout.root && !model.ops.empty()) {  // everything but the loss
    layout.op_begin = 0;
    layout.op_end = static_cast<std::int32_t>(model.ops.size()) - 1;
  }
  layout.inputs_require_grad = first != nullptr && needs_input_gradient(*first, model);
}

ShardedParam sharded(std::int32_t id, const Parameter& p, const UnitLayout& layout) {
  const std::string where = "parameter " + p.name;
  ShardedParam s;
  s.param = id;
  s.rows = p.shape.empty() ? 1 : p.shape.front();
  s.row_elements = 1;
  for (std::size_t d = 1; d < p.shape.size(); ++d) s.row_elements = checked_mul(s.row_elements, p.shape[d], where);
  s.chunk_rows = s.rows / layout.shards + (s.rows % layout.shards != 0 ? 1 : 0);
  s.offset = layout.shard_elements;
  (void)checked_mul(checked_mul(s.chunk_rows, s.row_elements, where), layout.shards, where);  // its padded whole must exist, too
  return s;
}

}  // namespace

std::int64_t UnitLayout::local_elements(std::int64_t shard_rank) const {
  std::int64_t sum = 0;
  for (const ShardedParam& p : params) sum += p.local_elements(shard_rank);
  return sum;
}

std::vector<UnitLayout> unit_layouts(const ShardingPlan& plan, const ModelGraph& model) {
  const std::vector<std::int32_t> end = subtree_ends(model);
  const auto none = static_cast<std::int32_t>(plan.units.size());
  std::vector<std::int32_t> unit_of_module(model.modules.size(), none);  // the first (innermost) unit that holds the module
  std::vector<UnitLayout> layouts(plan.units.size());
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    UnitLayout& layout = layouts[u];
    layout.shards = plan.dialect == Dialect::ddp ? 1 : std::max<std::int64_t>(1, plan.shard());
    const std::vector<std::int32_t> ids = module_ids(plan.units[u], model, u);
    for (const std::int32_t id : ids) {
      layout.root = layout.root || id == 0;
      for (std::int32_t m = id; m < end[id]; ++m) unit_of_module[m] = std::min(unit_of_module[m], static_cast<std::int32_t>(u));
    }
    set_op_range(layout, ids, model);
  }
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const Parameter& parameter = model.parameters[p];
    std::int32_t unit = none;  // tied: the unit that comes first to any of its owners
    for (const std::int32_t owner : parameter.modules) unit = std::min(unit, unit_of_module[owner]);
    if (unit == none) {
      throw InputError("plan: units", "no unit holds parameter '" + parameter.name + "'",
                       "add the root unit {\"\"} as the last one");
    }
    UnitLayout& layout = layouts[unit];
    layout.params.push_back(sharded(static_cast<std::int32_t>(p), parameter, layout));
    layout.shard_elements =
        checked_add(layout.shard_elements, layout.params.back().padded_shard(), "parameter " + parameter.name);
    layout.numel = checked_add(layout.numel, layout.params.back().numel(), "parameter " + parameter.name);
  }
  return layouts;
}

std::vector<std::int32_t> unit_of_parameters(const std::vector<UnitLayout>& layouts, const ModelGraph& model) {
  std::vector<std::int32_t> unit_of(model.parameters.size(), -1);
  for (std::size_t u = 0; u < layouts.size(); ++u) {
    for (const ShardedParam& p : layouts[u].params) unit_of[p.param] = static_cast<std::int32_t>(u);
  }
  return unit_of;
}

}  // namespace fsdp
