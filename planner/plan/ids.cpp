#include <algorithm>
#include <string>

#include "models/graph/experts.h"
#include "planner/plan/refusal.h"
#include "planner/plan_ids.h"

namespace fsdp {
namespace {

bool is_named(const Parameter& p, const std::string& name) {
  return p.name == name || (!p.part_of.empty() && p.part_of == name);
}

void resolve_ignored(PlanIds& ids, const ShardingPlan& plan, const ModelGraph& model, const ModuleIndex& modules,
                     std::string_view where) {
  for (const std::string& name : plan.ignored) {
    const std::int32_t module = modules.find(name);
    bool found = module >= 0;
    if (found) ids.ignored_modules.push_back(module);
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      if (!is_named(model.parameters[p], name)) continue;
      ids.ignored_parameters.push_back(static_cast<std::int32_t>(p));
      found = true;
    }
    if (!found) throw InputError(field(where, "ignored"), "no module or parameter is named '" + name + "'", kShowModel);
  }
}

std::vector<std::int64_t> shard_dims(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  std::vector<std::int64_t> dims(model.parameters.size(), 0);
  for (const ShardDim& d : plan.shard_dims) {
    bool found = false;
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      if (!is_named(model.parameters[p], d.parameter)) continue;
      const std::int64_t dim = dim_of_part(model.parameters[p], d.dim);
      if (d.dim < 0 || dim >= static_cast<std::int64_t>(model.parameters[p].shape.size()))
        throw InputError(field(where, "shard_dims"), "'" + d.parameter + "' has no dimension " + std::to_string(d.dim),
                         "use 0 or another dimension that it has");
      dims[p] = dim;
      found = true;
    }
    if (!found) throw InputError(field(where, "shard_dims"), "no parameter is named '" + d.parameter + "'", kShowModel);
  }
  return dims;
}

std::vector<std::int32_t> resolve_modules(const std::vector<std::string>& names, const ModuleIndex& modules,
                                          const Origin& at) {
  std::vector<std::int32_t> ids;
  for (const std::string& name : names) {
    ids.push_back(modules.find(name));
    if (ids.back() < 0) throw InputError(at, "no module is named '" + name + "'", kShowModel);
  }
  return ids;
}

}  // namespace

ModuleIndex::ModuleIndex(const ModelGraph& model) {
  ids_.reserve(model.modules.size());
  for (std::size_t i = 0; i < model.modules.size(); ++i)
    ids_.try_emplace(model.modules[i].name, static_cast<std::int32_t>(i));
}

std::int32_t ModuleIndex::find(std::string_view name) const {
  const auto found = ids_.find(name);
  return found == ids_.end() ? -1 : found->second;
}

PlanIds resolve_ids(const ShardingPlan& plan, const ModelGraph& model, std::string_view where) {
  const ModuleIndex modules(model);
  PlanIds ids;
  resolve_ignored(ids, plan, model, modules, where);
  ids.shard_dims = shard_dims(plan, model, where);
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    ids.units.push_back(
        resolve_modules(plan.units[u].modules, modules, field(where, "units[" + std::to_string(u) + "].modules")));
  ids.checkpointed = resolve_modules(plan.checkpointed, modules, field(where, "checkpointed"));
  ids.offload_activations = resolve_modules(plan.offload_activations, modules, field(where, "offload_activations"));
  return ids;
}

}  // namespace fsdp
