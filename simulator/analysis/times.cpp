#include "simulator/analysis/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "simulator/analysis/order.h"

namespace fsdp {

namespace {

bool is_typed(const Operation& op) {
  return op.graph_op >= 0 &&
         (op.action == Action::forward || op.action == Action::recompute || op.action == Action::backward);
}

}  // namespace

ActionKey action_key(const Operation& op, const ModelGraph& model) {
  if (!is_typed(op)) return {op.action};
  return {op.action, model.ops.at(static_cast<std::size_t>(op.graph_op)).kind};
}

std::vector<ActionTime> times_by_action(const Step& step, const Timeline& timeline, const ModelGraph& model) {
  std::map<ActionKey, ActionTime> rows;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    if (!runs_on_a_stream(step.ops[i])) continue;
    const ActionKey what = action_key(step.ops[i], model);
    ActionTime& row = rows[what];
    row.what = what;
    ++row.count;
    row.seconds += timeline.spans[i].end - timeline.spans[i].start;
  }
  std::vector<ActionTime> table;
  for (const auto& [what, row] : rows) table.push_back(row);
  std::stable_sort(table.begin(), table.end(),
                   [](const ActionTime& a, const ActionTime& b) { return a.seconds > b.seconds; });
  return table;
}

namespace {

// By module: the innermost unit around it; -1: none (an operation outside of the model).
std::vector<std::int32_t> unit_of_modules(const ShardingPlan& plan, const ModelGraph& model) {
  std::vector<std::int32_t> unit_of(model.modules.size(), -1);
  for (std::size_t u = 0; u < plan.units_of_modules(); ++u)
    for (const std::string& module : plan.units[u].modules)
      if (const std::int32_t m = model.find_module(module); m >= 0)
        unit_of[static_cast<std::size_t>(m)] = static_cast<std::int32_t>(u);
  for (std::size_t m = 1; m < model.modules.size(); ++m)  // pre-order: the parent comes first
    if (unit_of[m] < 0) unit_of[m] = unit_of[static_cast<std::size_t>(model.modules[m].parent)];
  return unit_of;
}

}  // namespace

std::vector<std::int32_t> units_of_operations(const Step& step, const ShardingPlan& plan, const ModelGraph& model) {
  const std::vector<std::int32_t> unit_of = unit_of_modules(plan, model);
  std::vector<std::int32_t> units;
  units.reserve(step.ops.size());
  for (const Operation& op : step.ops) {
    std::int32_t unit = op.unit;
    if (unit < 0 && op.graph_op >= 0)
      if (const std::int32_t m = model.ops.at(static_cast<std::size_t>(op.graph_op)).module; m >= 0)
        unit = unit_of[static_cast<std::size_t>(m)];
    units.push_back(unit);
  }
  return units;
}

std::string modules_text(const ShardingPlan& plan, std::int32_t unit) {
  const auto u = static_cast<std::size_t>(unit);
  const std::vector<std::string>& modules = plan.units[u].modules;
  if (plan.trained_outermost && u + 1 == plan.units_of_modules()) return "model";
  return fmt::format("{}{}", modules.empty() || modules.front().empty() ? "root" : modules.front(),
                     modules.size() > 1 ? fmt::format(" and {} more", modules.size() - 1) : "");
}

std::vector<UnitTime> times_by_unit(const Step& step, const Timeline& timeline, const ShardingPlan& plan,
                                    const ModelGraph& model) {
  const std::vector<std::int32_t> unit_of = units_of_operations(step, plan, model);
  std::vector<UnitTime> table(plan.units.size() + 1);
  for (std::size_t u = 0; u < plan.units.size(); ++u)
    table[u].what = {static_cast<std::int32_t>(u), modules_text(plan, static_cast<std::int32_t>(u))};
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (!runs_on_a_stream(op)) continue;
    const std::int32_t unit = unit_of[i];
    UnitTime& row = unit < 0 ? table.back() : table.at(static_cast<std::size_t>(unit));
    (is_collective(op.action) ? row.communication_seconds : row.compute_seconds) +=
        timeline.spans[i].end - timeline.spans[i].start;
  }
  std::erase_if(table, [](const UnitTime& row) { return row.compute_seconds == 0 && row.communication_seconds == 0; });
  return table;
}

}  // namespace fsdp
