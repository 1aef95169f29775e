#include "planner/tensor/float8.h"

#include "models/index.h"

namespace fsdp {

std::vector<char> float8_layers(const ModelGraph& model, const Float8Plan& plan) {
  std::vector<char> converted(model.ops.size(), 0);
  if (plan.recipe == Float8Recipe::none) return converted;
  const bool blocks = plan.recipe == Float8Recipe::mxfp8;
  const std::int64_t multiple = blocks ? 32 : 16;
  bool output = !blocks;  // from the end: the first linear layer met
  for (std::size_t i = model.ops.size(); i-- > 0;) {
    const Op& op = model.ops[i];
    if (op.kind != OpKind::linear) continue;
    converted[i] =
        !output && !op.shape.transposed && op.shape.in % multiple == 0 && op.shape.out % multiple == 0 ? 1 : 0;
    output = false;
  }
  return converted;
}

std::vector<char> float8_gathered(const ModelGraph& model, const Float8Plan& plan) {
  std::vector<char> gathered(model.parameters.size(), 0);
  if (!plan.all_gather) return gathered;
  const std::vector<char> converted = float8_layers(model, plan);
  for (std::size_t i = 0; i < model.ops.size(); ++i)
    if (converted[i] != 0) gathered[at(model.ops[i].params[0])] = 1;
  return gathered;
}

}  // namespace fsdp
