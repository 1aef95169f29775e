#include "simulator/published/prime_rl_model.h"

#include <algorithm>
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

void drop_unused_tensors(ModelGraph& model) {
  std::vector<std::int32_t> now(model.tensors.size(), kNone);
  std::vector<Tensor> kept;
  const auto keep = [&](std::int32_t& tensor) {
    std::int32_t& place = now[static_cast<std::size_t>(tensor)];
    if (place == kNone) {
      place = static_cast<std::int32_t>(kept.size());
      kept.push_back(model.tensors[static_cast<std::size_t>(tensor)]);
    }
    tensor = place;
  };
  keep(model.ids), keep(model.targets);
  for (Op& op : model.ops) {
    for (std::int32_t& t : op.inputs) keep(t);
    for (std::int32_t& t : op.outputs) keep(t);
  }
  model.tensors = std::move(kept);
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
  std::int64_t layer_reads = 0;
  for (Op& op : model.ops) {
    const std::string& name = op.module >= 0 ? model.modules[static_cast<std::size_t>(op.module)].name : model.name;
    if (op.kind == OpKind::linear && name.find(".lora_") != std::string::npos) {
      if (op.shape.in > op.shape.out) layer_reads = op.shape.in;  // A; B stands behind it
      op.shape.groups = held, op.shape.width = layer_reads;
    }
    if (op.kind != OpKind::scale || op.shape.experts.count > 0) continue;
    const auto of = static_cast<std::size_t>(op.module);
    op.params = stacked[of];
    op.shape.in = 0;
    for (const std::size_t adapter : adapters[of]) op.shape.in += held * parameters.before()[adapter].numel();
  }
  return model;
}

ModelGraph multiply_in_turn(ModelGraph model) {
  const auto multiplies = [](const Op& op, std::int32_t module) {
    const bool kind = op.kind == OpKind::expert_linear || op.kind == OpKind::scale || op.kind == OpKind::add ||
                      op.kind == OpKind::swiglu;
    return kind && op.module == module && op.shape.experts.count > 0;
  };
  std::vector<Op> ops;
  for (std::size_t i = 0; i < model.ops.size();) {
    if (model.ops[i].kind != OpKind::expert_linear) {
      ops.push_back(std::move(model.ops[i++]));
      continue;
    }
    const std::int32_t module = model.ops[i].module;
    const OpShape first = model.ops[i].shape;
    Op one{OpKind::opaque, module, model.ops[i].inputs, {}, {}, {}};
    double products = 0;  // flops of a step per row, a third of them
    std::int32_t result = kNone;
    one.shape.width = first.out, one.shape.in = first.in;
    for (; i < model.ops.size() && multiplies(model.ops[i], module); ++i) {
      const Op& op = model.ops[i];
      result = op.outputs[0];
      one.params.insert(one.params.end(), op.params.begin(), op.params.end());
      if (op.kind == OpKind::swiglu) one.shape.out = op.shape.width;
      if (op.kind != OpKind::expert_linear) continue;
      one.shape.width = std::min(one.shape.width, op.shape.out);
      const bool trained = model.parameters[static_cast<std::size_t>(op.params[0])].trainable;
      products += (trained ? 6.0 : 4.0) / 3 * static_cast<double>(op.shape.in) * static_cast<double>(op.shape.out);
    }
    const auto count = static_cast<double>(first.experts.count), chosen = static_cast<double>(first.experts.top_k);
    one.shape.groups = first.experts.count;
    one.shape.experts = {1, 1, chosen / count};
    one.shape.opaque_flops_per_token = products * chosen / count;
    Op join{OpKind::opaque, module, {}, {result}, {}, {}};
    join.shape.width = first.in, join.shape.experts = first.experts;
    for (std::int64_t k = 0; k < first.experts.count; ++k) {
      one.outputs = {add_tensor(model, first.in, one.shape.experts)};
      join.inputs.push_back(one.outputs[0]);
      ops.push_back(one);
    }
    ops.push_back(std::move(join));
  }
  model.ops = std::move(ops);
  drop_unused_tensors(model);
  set_op_ranges(model);
  return freeze(std::move(model), {}, "adapters");
}

}  // namespace fsdp
