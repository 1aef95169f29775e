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

const char* const kPytorchStates = R"python(def growing(optimizer):
    """(parameter, its states, key) of every state that is as large as its parameter."""
    for parameter, states in optimizer.state.items():
        for key, state in states.items():
            if torch.is_tensor(state) and state.dim() > 0 and state.shape == parameter.shape:
                yield parameter, states, key


def step_with_states_on_host(optimizer, places={}):
    """Optimizer states wait in (pinned) host memory from step to step: they come to the device for the step alone, and
    the host waits until they are back. places: their memory."""
    def local(tensor):
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def holding(state, tensor):
        return DTensor(tensor, state._spec, requires_grad=False) if isinstance(state, DTensor) else tensor

    for parameter, states, key in growing(optimizer):
        places[id(parameter), key] = place = local(states[key])
        states[key] = holding(states[key], place.to(local(parameter).device, non_blocking=True))
    optimizer.step()
    for parameter, states, key in growing(optimizer):
        state, place = local(states[key]), places.get((id(parameter), key))
        if place is None or place is state or place.device.type != "cpu":
            place = places[id(parameter), key] = torch.empty_like(state, device="cpu", pin_memory=state.is_cuda)
        states[key] = holding(states[key], place.copy_(state, non_blocking=True))
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


)python";

}  // namespace fsdp
