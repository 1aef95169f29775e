#include "models/graph/experts.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "models/graph/op_ranges.h"
#include "models/graph/renumbered.h"

namespace fsdp {
namespace {

std::string owner_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

std::int32_t add_tensor(ModelGraph& model, std::int64_t width, const Experts& experts) {
  model.tensors.push_back({.kind = TensorKind::activation, .width = width, .experts = experts});
  return static_cast<std::int32_t>(model.tensors.size()) - 1;
}

void separate_gate_and_up(ModelGraph& model) {
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
    gate.part_of = gate.name, gate.name = owner_of(gate.name) + "w1", gate.shape[1] /= 2;
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
}

void share_before_combining(ModelGraph& model) {
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
}

// The linear layers that make what experts are chosen by.
void set_routers(ModelGraph& model, bool fp32) {
  std::vector<char> logits(model.tensors.size(), 0);
  for (Op& op : model.ops) {
    if (op.kind != OpKind::moe_route) continue;
    logits[static_cast<std::size_t>(op.inputs[0])] = 1;
    op.shape.in_fp32 = fp32;
  }
  for (Op& op : model.ops)
    if (op.kind == OpKind::linear && logits[static_cast<std::size_t>(op.outputs[0])] != 0)
      op.shape.router = true, op.shape.in_fp32 = fp32;
}

}  // namespace

bool has_experts(const ModelGraph& model) {
  return std::any_of(model.ops.begin(), model.ops.end(),
                     [](const Op& op) { return op.kind == OpKind::expert_linear || is_expert_in_turn(op); });
}

ModelGraph with_torchtitan_experts(ModelGraph model, TorchtitanExperts how) {
  if (!has_experts(model)) return model;
  separate_gate_and_up(model);
  if (how.sorted_outside) {
    for (Op& op : model.ops)
      if (op.kind == OpKind::moe_dispatch || op.kind == OpKind::moe_combine)
        op.module = model.modules[static_cast<std::size_t>(op.module)].parent;
    share_before_combining(model);
  }
  set_routers(model, how.fp32_routers);
  set_op_ranges(model);
  model.own_form = true;
  return model;
}

}  // namespace fsdp
