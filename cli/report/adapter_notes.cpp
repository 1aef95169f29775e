#include "cli/report/adapter_notes.h"

#include <fmt/format.h>

#include "models/hub/tensors.h"

namespace fsdp::cli {

std::string adapter_notes(const ShardingPlan& plan, const ModelGraph& model) {
  const bool narrow = size_of(plan.param_dtype) == 2 && plan.kept_dtype(/*trained=*/true) == plan.param_dtype;
  if (!narrow || !has_adapters(model)) return "";
  return fmt::format(
      "note: adapters are taken to be in {}, as the weights are; peft makes them fp32 (autocast_adapter_dtype) unless "
      "told otherwise, and casts what they read: --trained-dtype fp32 is that\n",
      name(plan.param_dtype));
}

}  // namespace fsdp::cli
