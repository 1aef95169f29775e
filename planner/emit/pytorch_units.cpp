// What an emitted PyTorch script says of the order of a plan's units, and of its roots.
#include <algorithm>
#include <numeric>

#include "models/index.h"
#include "planner/emit/formats.h"
#include "planner/emit/pytorch_template.h"
#include "planner/layout/unit_order.h"

namespace fsdp {
namespace {

// Each unit by its first module.
std::string names_text(const ShardingPlan& plan, const std::vector<std::int32_t>& order) {
  std::vector<std::string> names;
  for (const std::int32_t u : order) names.push_back(plan.units[at(u)].modules.front());
  return python_list(names);
}

}  // namespace

std::string python_list(const std::vector<std::string>& texts) {
  std::vector<std::string> items;
  for (const std::string& t : texts) items.push_back(quoted(t));
  return "[" + join(items, ", ") + "]";
}

std::string orders_text(const ShardingPlan& plan, const ModelGraph& model) {
  const auto n = static_cast<std::int32_t>(plan.units.size());
  if (plan.dialect != Dialect::fsdp2) return {};
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  std::vector<std::int32_t> listed(plan.units.size());
  std::iota(listed.begin(), listed.end(), 0);
  std::string text;
  if (const auto ends = order_of_ends(layouts); plan.backward_prefetch > 1 && ends != listed)
    text += "    \"backward_order\": " + names_text(plan, ends) + ",\n";
  std::rotate(listed.begin(), listed.end() - 1, listed.end());
  if (const auto begins = execution_order(layouts); plan.forward_prefetch > 0 && n > 1 && begins != listed)
    text += "    \"forward_order\": " + names_text(plan, begins) + ",\n";
  return text;
}

std::string roots_text(const ShardingPlan& plan, const ModelGraph& model) {
  if (!plan.share_comm_context) return {};
  const std::vector<UnitLayout> layouts = unit_layouts(plan, model);
  std::vector<std::int32_t> roots = execution_order(layouts);
  std::erase_if(roots, [&](std::int32_t u) { return !layouts[at(u)].root; });
  return "    \"roots\": " + names_text(plan, roots) + ",  # no unit holds the whole model\n";
}

const char* const kPytorchRoots = R"python(    share_comm_ctx(roots_of(model))

    def begin(*_):                           # all of them: a later root's first forward would empty what they share
        for root in roots_of(model):
            fully_shard.state(root)._lazy_init()    # once
    model.register_forward_pre_hook(begin)
)python";

}  // namespace fsdp
