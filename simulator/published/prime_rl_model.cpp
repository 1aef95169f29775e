#include "simulator/published/prime_rl_model.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/op_ranges.h"
#include "models/graph/renumbered.h"

namespace fsdp {
namespace {

std::int32_t add_tensor(ModelGraph& model, std::int64_t width, const Experts& experts) {
  model.tensors.push_back({.kind = TensorKind::activation, .width = width, .experts = experts});
  return static_cast<std::int32_t>(model.tensors.size()) - 1;
}

// Per parameter: 1 if experts multiply by it.
std::vector<char> experts_parameters(const ModelGraph& model, std::size_t count) {
  std::vector<char> found(count, 0);
  for (const Op& op : model.ops)
    if (op.kind == OpKind::expert_linear) found[static_cast<std::size_t>(op.params[0])] = 1;
  return found;
}

}  // namespace

ModelGraph adapt_experts(ModelGraph model, std::int64_t rank) {
  struct Weights {
    std::int32_t down = kNone, up = kNone;
  };
  const std::vector<char> adapted = experts_parameters(model, model.parameters.size());
  Renumbered parameters(model);
  std::vector<Weights> weights(adapted.size());
  for (std::size_t i = 0; i < adapted.size(); ++i) {
    parameters.keep(i);
    if (adapted[i] == 0) continue;
    const auto adapter = [&](const char* which, std::int64_t out, std::int64_t in) {
      Parameter p = parameters.before()[i];
      p.name += which, p.shape = {p.shape[0], out, in}, p.trainable = true;
      return parameters.add(std::move(p));
    };
    const std::vector<std::int64_t> shape = parameters.before()[i].shape;  // experts, out, in
    const std::int32_t down = adapter("_lora_A", rank, shape[2]);
    weights[i] = {down, adapter("_lora_B", shape[1], rank)};
  }
  std::vector<Op> ops;
  std::vector<std::pair<std::size_t, std::int32_t>> fresh;
  for (Op& op : model.ops) {
    if (op.kind != OpKind::expert_linear) {
      ops.push_back(std::move(op));
      continue;
    }
    const OpShape& s = op.shape;
    const std::int32_t x = op.inputs[0], result = op.outputs[0], base = add_tensor(model, s.out, s.experts),
                       low = add_tensor(model, rank, s.experts), high = add_tensor(model, s.out, s.experts),
                       scaled = add_tensor(model, s.out, s.experts);
    const auto [down, up] = weights[static_cast<std::size_t>(op.params[0])];
    const OpShape rows{.width = s.out, .experts = s.experts};
    op.outputs = {base};
    ops.push_back(op);
    ops.push_back({OpKind::expert_linear, op.module, {x}, {low}, {}, {.in = s.in, .out = rank, .experts = s.experts}});
    fresh.emplace_back(ops.size() - 1, down);
    ops.push_back(
        {OpKind::expert_linear, op.module, {low}, {high}, {}, {.in = rank, .out = s.out, .experts = s.experts}});
    fresh.emplace_back(ops.size() - 1, up);
    ops.push_back({OpKind::scale, op.module, {high}, {scaled}, {}, rows});
    ops.push_back({OpKind::add, op.module, {base, scaled}, {result}, {}, rows});
  }
  model.ops = std::move(ops);
  parameters.renumber_ops();
  for (const auto& [op, weight] : fresh) model.ops[op].params = {weight};
  set_op_ranges(model);
  return freeze(std::move(model), {}, "adapters");
}

ModelGraph hold_adapters(ModelGraph model, std::int64_t held) {
  std::vector<std::vector<std::size_t>> adapters(model.modules.size());  // per adapted layer: A and B
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const Parameter& p = model.parameters[i];
    const auto& module = [&](std::int32_t m) -> const Module& { return model.modules[static_cast<std::size_t>(m)]; };
    if (p.name.find(".lora_A.") != std::string::npos || p.name.find(".lora_B.") != std::string::npos)
      adapters[static_cast<std::size_t>(module(module(p.modules[0]).parent).parent)].push_back(i);
  }
  const std::vector<char> of_experts = experts_parameters(model, model.parameters.size());
  Renumbered parameters(model);
  std::vector<std::vector<std::int32_t>> stacked(adapters.size());
  const auto hold = [&](std::size_t i, std::int32_t owner, const std::string& name, bool trained) {
    std::vector<std::int32_t> made;
    for (std::int64_t k = 1; k < held; ++k) {
      Parameter p = parameters.before()[i];
      p.name = name + "_" + std::to_string(k), p.modules = {owner}, p.trainable = trained;
      made.push_back(parameters.add(std::move(p)));
    }
    return made;
  };
  std::size_t layer = 0;  // those before it have what they hold
  for (std::size_t i = 0; i < parameters.before().size(); ++i) {
    const Parameter& p = parameters.before()[i];
    for (; layer < adapters.size() && layer <= static_cast<std::size_t>(p.modules[0]); ++layer) {
      const char* which = ".lora_A";
      for (const std::size_t adapter : adapters[layer]) {
        const std::vector<std::int32_t> made =
            hold(adapter, static_cast<std::int32_t>(layer), model.modules[layer].name + which, /*trained=*/true);
        stacked[layer].insert(stacked[layer].end(), made.begin(), made.end());
        which = ".lora_B";
      }
    }
    parameters.keep(i);
    if (of_experts[i] != 0 && p.trainable) hold(i, p.modules[0], p.name, /*trained=*/false);
  }
  parameters.renumber_ops();
  for (Op& op : model.ops) {
    if (op.kind != OpKind::scale || op.shape.experts.count > 0) continue;
    const auto of = static_cast<std::size_t>(op.module);
    op.params = stacked[of];
    op.shape.in = 0;
    for (const std::size_t adapter : adapters[of]) op.shape.in += held * parameters.before()[adapter].numel();
  }
  return model;
}

}  // namespace fsdp
