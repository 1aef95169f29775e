#include "cli/report/adapter_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "models/hub/tensors.h"
#include "models/units.h"

namespace fsdp::cli {
namespace {

// Copies of what adapters read, in `width` bytes an element, of one checkpointed module at a time.
double of_adapter_inputs(const ShardingPlan& plan, const ModelGraph& model, double width) {
  std::map<std::string, double> of_checkpointed;
  double others = 0, most = 0;
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::linear || op.params.empty()) continue;
    const Parameter& p = model.parameters[static_cast<std::size_t>(op.params[0])];
    if (lora_part(p) != LoraPart::down) continue;
    const auto within = std::find_if(plan.checkpointed.begin(), plan.checkpointed.end(),
                                     [&](const std::string& module) { return p.name.starts_with(module + "."); });
    (within == plan.checkpointed.end() ? others : of_checkpointed[*within]) += static_cast<double>(op.shape.in);
  }
  for (const auto& [module, widths] : of_checkpointed) most = std::max(most, widths);
  return static_cast<double>(plan.micro_batches.front() * plan.seq_len) * (others + most) * width;
}

std::string human_of(double bytes) { return human(Bytes(static_cast<std::int64_t>(std::min(bytes, 9e18)))); }

// Weights and adapters in 16 bits, where peft makes adapters fp32.
std::string narrow_adapters(const ShardingPlan& plan) {
  return fmt::format(
      "note: adapters are taken to be in {}, as the weights are; peft makes them fp32 (autocast_adapter_dtype) unless "
      "told otherwise, and casts what they read: --trained-dtype fp32 is that\n",
      name(plan.master_dtype));
}

// Adapters in units of their own, sharded in fp32 and gathered in 16 bits: outside of its unit the weight is its
// shard, to whose dtype peft casts what the adapter reads; the unit casts it back.
std::string cast_adapters(const ShardingPlan& plan, const ModelGraph& model) {
  return fmt::format(
      "note: peft casts what each adapter reads to the {} of its shard, and its unit casts it back to {}: copies that "
      "take up to {} more than is predicted\n",
      name(plan.kept_dtype(/*trained=*/true)), name(plan.param_dtype), human_of(of_adapter_inputs(plan, model, 2)));
}

// The first weight of an adapter is all of some unit.
bool has_units_of_adapters(const ShardingPlan& plan, const ModelGraph& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(), [&](const Parameter& p) {
    return lora_part(p) == LoraPart::down && std::any_of(plan.units.begin(), plan.units.end(), [&](const Unit& u) {
             return u.modules.size() == 1 && p.name == u.modules.front() + ".weight";
           });
  });
}

}  // namespace

std::string adapter_notes(const ShardingPlan& plan, const ModelGraph& model, const Implementation& implementation) {
  if (!has_adapters(model)) return "";
  const bool narrow = size_of(plan.param_dtype) == 2;
  const DType kept = plan.kept_dtype(/*trained=*/true);
  if (narrow && kept == plan.param_dtype) return narrow_adapters(plan);
  if (narrow && size_of(kept) == 4 && has_units_of_adapters(plan, model) && !implementation.peft_casts)
    return cast_adapters(plan, model);
  return "";
}

}  // namespace fsdp::cli
