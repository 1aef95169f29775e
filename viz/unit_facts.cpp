#include "viz/unit_facts.h"

#include "models/index.h"

namespace fsdp {
namespace {

bool inside_of(const std::string& inner, const std::string& outer) {
  return outer.empty() || inner == outer || inner.starts_with(outer + ".");
}

}  // namespace

bool recomputes(const Unit& unit, const ShardingPlan& plan) {
  if (unit.modules.front().empty()) return false;  // what the root holds beside inner units is not said by names
  for (const std::string& module : unit.modules)
    for (const std::string& checkpointed : plan.checkpointed)
      if (inside_of(module, checkpointed) || inside_of(checkpointed, module)) return true;
  return false;
}

std::vector<std::int32_t> units_around(const ShardingPlan& plan) {
  std::vector<std::int32_t> around(plan.units.size(), -1);
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    std::size_t longest = 0;
    for (std::size_t v = u + 1; v < plan.units.size(); ++v)  // inner before outer
      for (const std::string& module : plan.units[v].modules)
        if (inside_of(plan.units[u].modules.front(), module) && (around[u] < 0 || module.size() > longest)) {
          around[u] = static_cast<std::int32_t>(v);
          longest = module.size();
        }
  }
  return around;
}

std::string reshard_words(const ShardingPlan& plan, std::size_t u) {
  if (plan.dialect == Dialect::ddp) return "whole on every rank";
  const Unit& unit = plan.units[u];
  const bool root = unit.modules.front().empty() && u + 1 == plan.units.size();
  const Reshard reshard = unit.reshard_after_forward;
  if (reshard == Reshard::no || (reshard == Reshard::automatic && root)) return "kept until backward";
  if (reshard == Reshard::yes || reshard == Reshard::automatic || reshard.ranks == plan.shard())
    return "gathered again for backward";
  return "kept over groups of " + name(reshard) + " ranks";
}

}  // namespace fsdp
