// The names of activation checkpointing's policies; what they choose is in wrap.cpp.
#include "models/input/error.h"
#include "planner/wrap.h"

namespace fsdp {

std::vector<std::string> checkpointing_forms() { return {"none", "full", "selective-op", "every-N", "first-N"}; }

std::optional<std::string> checkpointing_policy(const ShardingPlan& plan, const ModelGraph& model) {
  const auto count = static_cast<std::int64_t>(plan.checkpointed.size());
  if (count == 0) return "none";
  const bool selective = plan.checkpoint_policy == CheckpointPolicy::selective_op;
  std::vector<std::string> policies = {selective ? "selective-op" : "full"};
  if (!selective) {
    policies.push_back("first-" + std::to_string(count));
    for (std::int64_t n = 2; n <= static_cast<std::int64_t>(model.modules.size()) / count; ++n)
      policies.push_back("every-" + std::to_string(n));
  }
  for (const std::string& policy : policies) {
    try {
      if (checkpointed_modules(model, policy, "plan") == plan.checkpointed) return policy;
    } catch (const InputError&) {  // no repeated blocks, or fewer than n
      continue;
    }
  }
  return std::nullopt;
}

}  // namespace fsdp
