#include "planner/plan/check_activations.h"

#include <algorithm>
#include <string>

#include "models/index.h"
#include "planner/plan/refusal.h"

namespace fsdp {

void check_activations(const ShardingPlan& plan, std::string_view where) {
  const std::vector<std::string>& names = plan.offload_activations;
  if (names.empty()) return;
  const auto refuse = [&](bool broken, const std::string& problem, const std::string& remedy) {
    refuse_if(broken, where, "offload_activations", problem, remedy);
  };
  refuse(plan.dialect != Dialect::fsdp2,
         "activations in host memory are not known here under " + std::string(name(plan.dialect)),
         "leave it out, or use fsdp2");
  refuse(plan.tensor() > 1, "activations of tensor ranks in host memory are not known here",
         "leave it out, or set the tensor dimension to 1");
  refuse(plan.checkpoint_policy != CheckpointPolicy::full,
         "with a selective policy what is kept would go to host memory as well, which is not known here",
         "leave it out, or use the checkpoint_policy full");
  for (std::size_t i = 0; i < names.size(); ++i) {
    refuse(std::find(plan.checkpointed.begin(), plan.checkpointed.end(), names[i]) == plan.checkpointed.end(),
           "'" + names[i] + "' is not recomputed, and would send all that it saves to host memory, not its input alone",
           "name modules of `checkpointed`");
    refuse(std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
               names.begin() + static_cast<std::ptrdiff_t>(i),
           "'" + names[i] + "' is named twice", "name it once");
  }
}

void check_activations(const ShardingPlan& plan, const PlanIds& ids, const ModelGraph& model, std::string_view where) {
  if (ids.offload_activations.empty()) return;
  refuse_if(!model.trace.empty(), where, "offload_activations",
            "of an exported model it is not known what a module was called with", "leave it out");
  for (std::size_t k = 0; k < ids.offload_activations.size(); ++k) {
    const Module& m = model.modules[at(ids.offload_activations[k])];
    for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
      for (const std::int32_t t : model.ops[at(i)].inputs)
        refuse_if(t == model.ids || t == model.targets, where, "offload_activations",
                  "'" + plan.offload_activations[k] + "' reads the batch, which is not known here to go to host memory",
                  "name modules that read activations alone, such as blocks");
  }
}

}  // namespace fsdp
