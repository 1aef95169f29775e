#include "planner/lowering/step/unit_hooks.h"

#include <algorithm>

#include "models/index.h"

namespace fsdp {
namespace {

// Where the module of a unit begins whose return ends a use of the unit: its last one.
std::int32_t last_module_begin(const ModelGraph& model, const std::vector<std::int32_t>& modules, const UnitUse& use) {
  std::int32_t begin = kNone;
  for (const std::int32_t m : modules) {
    const Module& module = model.modules[at(m)];
    if (module.op_end == use.op_end && module.op_begin >= use.op_begin) begin = std::max(begin, module.op_begin);
  }
  return begin >= 0 ? begin : use.op_begin;
}

// Attention with sinks returns its probabilities, too (modeling_gpt_oss.py).
void add_returns(UnitHooks& hooks, std::int32_t unit, const ModelGraph& model, const std::vector<std::int32_t>& modules,
                 const UnitUse& use) {
  for (std::int32_t i = use.op_begin; i < use.op_end; ++i) {
    const Op& op = model.ops[at(i)];
    if (op.shape.sinks && model.modules[at(op.module)].op_end == use.op_end &&
        std::find(modules.begin(), modules.end(), op.module) != modules.end())
      hooks.returns[at(i)].push_back(unit);
  }
}

}  // namespace

UnitHooks unit_hooks(const ModelGraph& model, const PlanIds& ids, const std::vector<UnitLayout>& layouts, bool around) {
  UnitHooks hooks;
  const std::size_t n = model.ops.size();
  hooks.begins.resize(n), hooks.ends.resize(n), hooks.returns.resize(n);
  hooks.again_begins.resize(n), hooks.again_ends.resize(n);
  std::vector<char> inside(model.modules.size(), 0);
  for (const std::int32_t m : ids.checkpointed) inside[at(m)] = 1;
  const auto checkpointed = inside;
  for (std::size_t m = 0; m < inside.size(); ++m) {  // parents come first
    const std::int32_t parent = model.modules[m].parent;
    inside[m] = (around && checkpointed[m]) || (parent >= 0 && (checkpointed[at(parent)] || inside[at(parent)]));
  }
  for (std::size_t k = layouts.size(); k-- > 0;) {  // the plan lists inner before outer
    const auto unit = static_cast<std::int32_t>(k);
    if (layouts[k].group_of >= 0) continue;
    for (const UnitUse& use : layouts[k].uses) {
      hooks.begins[at(use.op_begin)].push_back({unit, use.op_end, use.inputs_require_grad});
      hooks.ends[at(use.op_end - 1)].push_back({unit, last_module_begin(model, ids.units[k], use)});
      add_returns(hooks, unit, model, ids.units[k], use);
    }
    for (const std::int32_t m : ids.units[k]) {
      const Module& module = model.modules[at(m)];
      if (!inside[at(m)] || module.op_begin == module.op_end) continue;
      hooks.again_begins[at(module.op_begin)].push_back(unit);
      hooks.again_ends[at(module.op_end - 1)].push_back({unit, module.op_begin});
    }
  }
  return hooks;
}

void end_before(UnitHooks& hooks, std::int32_t head, std::int32_t unit) {
  auto& ends = hooks.ends[static_cast<std::size_t>(head) - 1];  // outermost first; the last to end first
  std::optional<UnitHooks::End> own;
  for (auto i = static_cast<std::size_t>(head); i < hooks.ends.size(); ++i)
    for (auto end = hooks.ends[i].rbegin(); end != hooks.ends[i].rend(); ++end) {
      if (end->unit == unit) own = *end;
      else ends.insert(ends.begin(), *end);
    }
  for (const auto& begins : hooks.begins)
    for (const UnitHooks::Begin& begin : begins)
      if (begin.unit == unit && own && &begins - hooks.begins.data() < head) ends.insert(ends.begin(), *own);
}

std::optional<ModelGraph> with_cast_inputs(const ModelGraph& model, const ShardingPlan& plan, const PlanIds& ids) {
  std::optional<ModelGraph> cast;
  if (plan.dialect != Dialect::fsdp2) return cast;
  for (std::size_t u = 0; u < ids.units.size(); ++u) {
    if (plan.units[u].group_of) continue;  // no module of it is called with casts
    for (const std::int32_t m : ids.units[u])
      for (std::int32_t i = model.modules[at(m)].op_begin; i < model.modules[at(m)].op_end; ++i) {
        const Op& op = model.ops[at(i)];
        if (op.module != m || op.shape.experts.count == 0 || op.kind == OpKind::moe_route || !op.shape.wide_weight)
          continue;
        if (!cast) cast = model;
        cast->ops[at(i)].shape.wide_weight = false;
      }
  }
  return cast;
}

}  // namespace fsdp
