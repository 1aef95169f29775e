// The rows of the module tree.
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "models/index.h"
#include "simulator/analysis/order.h"
#include "viz/report.h"
#include "viz/unit_facts.h"

namespace fsdp {
namespace {

struct ModuleSums {  // of a module and all inside
  std::int64_t parameters = 0;
  double forward = 0, recompute = 0, backward = 0;
};

std::vector<ModuleSums> sums_of(const StepPicture& p) {
  std::vector<ModuleSums> sums(p.model.modules.size());
  for (const Parameter& parameter : p.model.parameters)
    if (!parameter.modules.empty()) sums[at(parameter.modules.front())].parameters += parameter.numbers();
  const Step& step = p.program.steady_step;
  for (std::size_t i = 0; i < std::min(step.ops.size(), p.timeline.spans.size()); ++i) {
    const Operation& op = step.ops[i];
    if (op.graph_op < 0 || !runs_on_a_stream(op)) continue;
    const std::int32_t module = p.model.ops[at(op.graph_op)].module;
    if (module < 0) continue;
    const double seconds = p.timeline.spans[i].end - p.timeline.spans[i].start;
    ModuleSums& sum = sums[at(module)];
    (op.action == Action::forward     ? sum.forward
     : op.action == Action::recompute ? sum.recompute
                                      : sum.backward) += seconds;
  }
  for (std::size_t m = sums.size(); m-- > 1;) {  // pre-order: children come last
    ModuleSums& outer = sums[at(p.model.modules[m].parent)];
    outer.parameters += sums[m].parameters;
    outer.forward += sums[m].forward, outer.recompute += sums[m].recompute, outer.backward += sums[m].backward;
  }
  return sums;
}

}  // namespace

std::string report_modules(const StepPicture& p) {
  const std::vector<ModuleSums> sums = sums_of(p);
  std::vector<std::int32_t> unit_of(p.model.modules.size(), -1);
  for (std::size_t u = 0; u < p.plan.units.size(); ++u)
    for (const std::string& module : p.plan.units[u].modules)
      if (const std::int32_t m = p.model.find_module(module); m >= 0) unit_of[at(m)] = static_cast<std::int32_t>(u);
  const std::set<std::string> checkpointed(p.plan.checkpointed.begin(), p.plan.checkpointed.end()),
      ignored(p.plan.ignored.begin(), p.plan.ignored.end());
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::vector<int> depth(p.model.modules.size(), 0);
  for (std::size_t m = 0; m < p.model.modules.size(); ++m) {
    const Module& module = p.model.modules[m];
    if (module.parent >= 0) depth[m] = depth[at(module.parent)] + 1;
    nlohmann::ordered_json row = {{"name", module.name},           {"depth", depth[m]},
                                  {"class", module.class_name},    {"parameters", sums[m].parameters},
                                  {"forward_s", sums[m].forward},  {"recompute_s", sums[m].recompute},
                                  {"backward_s", sums[m].backward}};
    if (unit_of[m] >= 0) {
      row["unit"] = unit_of[m];
      row["reshard"] = reshard_words(p.plan, static_cast<std::size_t>(unit_of[m]));
    }
    if (checkpointed.contains(module.name))
      row["recomputed"] = p.plan.reentrant ? "reentrant" : name(p.plan.checkpoint_policy);
    if (ignored.contains(module.name)) row["ignored"] = true;
    rows.push_back(std::move(row));
  }
  return rows.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace fsdp
