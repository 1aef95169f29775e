// Parameters that are not trained. A tensor takes part in backward if it depends on a trained parameter.
#include <algorithm>

#include "models/graph.h"
#include "models/graph/module_names.h"
#include "models/input/error.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

bool below(std::string_view name, std::string_view module) { return module.empty() || inside(name, module); }

bool freeze_named(ModelGraph& model, std::string_view wanted) {
  const bool module = model.find_module(wanted) >= 0;
  bool found = module;
  for (Parameter& p : model.parameters) {
    const auto named = [&](std::string_view name) { return name == wanted || (module && below(name, wanted)); };
    if (!named(p.name) && std::none_of(p.aliases.begin(), p.aliases.end(), named)) continue;
    p.trainable = false;
    found = true;
  }
  return found;
}

std::vector<std::string> names(const ModelGraph& model) {
  std::vector<std::string> out;
  for (const Module& m : model.modules) out.push_back(m.name);
  for (const Parameter& p : model.parameters) out.push_back(p.name);
  return out;
}

bool trains(const ModelGraph& model, std::int32_t p) { return model.parameters[static_cast<std::size_t>(p)].trainable; }

// Of experts of the module that op `dispatch` is of.
bool trains_expert_biases(const ModelGraph& model, const Op& dispatch) {
  return std::any_of(model.ops.begin(), model.ops.end(), [&](const Op& op) {
    return op.kind == OpKind::expert_linear && op.module == dispatch.module && op.params.size() > 1 &&
           trains(model, op.params[1]);
  });
}

bool needs_gradient(const ModelGraph& model, const Op& op) {
  return std::any_of(op.params.begin(), op.params.end(), [&](std::int32_t p) { return trains(model, p); }) ||
         std::any_of(op.inputs.begin(), op.inputs.end(),
                     [&](std::int32_t t) { return model.tensors[static_cast<std::size_t>(t)].requires_grad; });
}

void set_results(ModelGraph& model, const Op& op, bool require_grad) {
  for (std::int32_t t : op.outputs) {
    Tensor& made = model.tensors[static_cast<std::size_t>(t)];
    made.requires_grad = require_grad && made.kind != TensorKind::ids;
  }
}

}  // namespace

ModelGraph freeze(ModelGraph model, std::span<const std::string> modules_or_parameters, std::string_view where) {
  if (!model.trace.empty())
    throw InputError(std::string(where), printable(model.name) + " is as PyTorch ran it, with what was trained then",
                     "freeze the parameters in PyTorch and export the model again");
  for (const std::string& wanted : modules_or_parameters) {
    if (!freeze_named(model, wanted))
      throw InputError(std::string(where), "\"" + printable(wanted) + "\" is no module or parameter of " + model.name,
                       suggestion(wanted, names(model)));
  }
  for (const Op& op : model.ops) set_results(model, op, needs_gradient(model, op));
  for (Op& op : model.ops)
    if (op.shape.keeps_order) op.shape.keeps_order = trains_expert_biases(model, op);
  return model;
}

ModelGraph require_input_gradients(ModelGraph model) {
  for (const Op& op : model.ops) set_results(model, op, op.kind == OpKind::embedding || needs_gradient(model, op));
  return model;
}

}  // namespace fsdp
