#include "planner/tensor/parts.h"

#include <optional>

#include "models/index.h"
#include "planner/tensor/styles.h"

namespace fsdp {

std::vector<TensorPart> tensor_parts(const ModelGraph& model, const ShardingPlan& plan) {
  std::vector<TensorPart> parts(model.parameters.size());
  if (plan.tensor() == 1) return parts;
  const std::vector<std::optional<TensorStyle>> styles = styles_of_modules(plan.tensor_plan, model, "plan");
  for (const Op& op : model.ops)
    for (const std::int32_t p : op.params) {
      const TensorStyle style = styles[at(model.parameters[at(p)].modules.front())].value_or(TensorStyle::sequence);
      if (style == TensorStyle::sequence) continue;
      const bool by_columns = op.kind == OpKind::linear && model.parameters[at(p)].shape.size() > 1 &&
                              (style == TensorStyle::rowwise) != op.shape.transposed;
      parts[at(p)] = {by_columns ? 1 : 0, plan.tensor()};
    }
  return parts;
}

}  // namespace fsdp
