#include "simulator/published/prime_rl_model.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/op_ranges.h"

namespace fsdp {
namespace {

// Puts parameters behind others of their module, and keeps the numbers of the old ones in ops.
class Renumbered {
 public:
  explicit Renumbered(ModelGraph& model) : model_(model), before_(std::exchange(model.parameters, {})) {}

  [[nodiscard]] const std::vector<Parameter>& before() const { return before_; }
  void keep(std::size_t old) {
    moved_.push_back(static_cast<std::int32_t>(model_.parameters.size()));
    model_.parameters.push_back(before_[old]);
  }
  std::int32_t add(Parameter p) {
    model_.parameters.push_back(std::move(p));
    return static_cast<std::int32_t>(model_.parameters.size()) - 1;
  }
  void renumber_ops() {
    for (Op& op : model_.ops)
      for (std::int32_t& p : op.params) p = moved_[static_cast<std::size_t>(p)];
  }

 private:
  ModelGraph& model_;
  std::vector<Parameter> before_;
  std::vector<std::int32_t> moved_;
};

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

std::string owner_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

}  // namespace

ModelGraph separate_gate_and_up(ModelGraph model) {
  std::vector<char> joined(model.tensors.size(), 0);  // gate and up in one
  for (const Op& op : model.ops)
    if (op.kind == OpKind::swiglu && op.shape.packed) joined[static_cast<std::size_t>(op.inputs[0])] = 1;
  std::vector<char> split(model.parameters.size(), 0);
  for (const Op& op : model.ops)
    if (op.kind == OpKind::expert_linear && joined[static_cast<std::size_t>(op.outputs[0])] != 0)
      split[static_cast<std::size_t>(op.params[0])] = 1;

  Renumbered parameters(model);
  std::vector<std::int32_t> ups(split.size(), kNone);
  for (std::size_t i = 0; i < split.size(); ++i) {
    parameters.keep(i);
    if (split[i] == 0) continue;
    Parameter& gate = model.parameters.back();
    gate.name = owner_of(gate.name) + "w1", gate.shape[1] /= 2;
    Parameter up = gate;
    up.name = owner_of(gate.name) + "w3";
    ups[i] = parameters.add(std::move(up));
  }
  std::vector<Op> ops;
  std::vector<std::int32_t> ups_of_tensors(model.tensors.size(), kNone);
  std::vector<std::pair<std::size_t, std::int32_t>> second;  // op, its parameter, which is new
  for (Op& op : model.ops) {
    if (op.kind == OpKind::swiglu && op.shape.packed) {
      op.shape.packed = false;
      op.inputs.push_back(ups_of_tensors[static_cast<std::size_t>(op.inputs[0])]);
    }
    if (op.kind == OpKind::moe_dispatch || op.kind == OpKind::moe_combine)
      op.module = model.modules[static_cast<std::size_t>(op.module)].parent;
    const bool both = op.kind == OpKind::expert_linear && split[static_cast<std::size_t>(op.params[0])] != 0;
    if (both) op.shape.out /= 2;
    ops.push_back(op);
    if (!both) continue;
    const auto made = static_cast<std::size_t>(op.outputs[0]);
    model.tensors[made].width = op.shape.out;
    ups_of_tensors[made] = add_tensor(model, op.shape.out, op.shape.experts);
    ops.push_back(op);
    ops.back().outputs = {ups_of_tensors[made]};
    second.emplace_back(ops.size() - 1, ups[static_cast<std::size_t>(op.params[0])]);
  }
  model.ops = std::move(ops);
  parameters.renumber_ops();
  for (const auto& [op, up] : second) model.ops[op].params = {up};
  set_op_ranges(model);
  return model;
}

ModelGraph share_before_combining(ModelGraph model) {
  for (Op& op : model.ops)
    if (op.kind == OpKind::linear) op.shape.in_fp32 = false;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    if (model.ops[i].kind != OpKind::moe_combine) continue;
    const std::int32_t combined = model.ops[i].outputs[0];
    std::size_t k = i + 1;
    const auto reads = [&](const Op& op) {
      return std::find(op.inputs.begin(), op.inputs.end(), combined) != op.inputs.end();
    };
    while (k < model.ops.size() && !reads(model.ops[k])) ++k;
    const auto at = [&](std::size_t op) { return model.ops.begin() + static_cast<std::ptrdiff_t>(op); };
    std::rotate(at(i), at(i + 1), at(k));
  }
  set_op_ranges(model);
  return model;
}

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
