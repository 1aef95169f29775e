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
  const auto separated = [](const Op& op) { return op.kind == OpKind::swiglu && op.shape.packed && !op.shape.clamped; };
  for (const Op& op : model.ops)
    if (separated(op)) joined[static_cast<std::size_t>(op.inputs[0])] = 1;
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
    if (separated(op)) {
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

// gpt-oss: gate and up stay one matrix, in turn, and biases; matrices are stored [out, in]; experts are chosen by a
// softmax of all; norms and rotary positions are those of other models, the latter in fp32.
void set_gpt_oss(ModelGraph& model) {
  const bool known = std::any_of(model.ops.begin(), model.ops.end(),
                                 [](const Op& op) { return op.kind == OpKind::moe_route && op.shape.of_chosen; });
  if (!known) return;
  for (Op& op : model.ops) {
    OpShape& s = op.shape;
    if (op.kind == OpKind::rms_norm) s.wide_weight = false;
    if (op.kind == OpKind::rotary) s.by_halves = false, s.wide_angles = true;
    if (op.kind == OpKind::attention) s.by_head = false;
    if (op.kind == OpKind::moe_route) s.of_chosen = false, s.renormalised = true;
    if (op.kind == OpKind::moe_dispatch) s.keeps_order = false;
    if (op.kind != OpKind::expert_linear || !s.transposed) continue;
    s.transposed = false;
    s.packed = &op != &model.ops.back() && (&op + 1)->kind == OpKind::swiglu;
    std::vector<std::int64_t>& shape = model.parameters[static_cast<std::size_t>(op.params[0])].shape;
    std::swap(shape[1], shape[2]);
  }
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

// What stands between a mixture's router and its result, once for each expert.
class Loops {
 public:
  explicit Loops(ModelGraph model) : from_(model), out_(std::move(model)), experts_of_(from_.parameters.size()) {}

  ModelGraph build() {
    split_parameters();
    for (std::size_t i = 0; i < from_.ops.size(); ++i) {
      if (from_.ops[i].kind == OpKind::moe_dispatch) i = loop(i);
      else out_.ops.push_back(renumbered(from_.ops[i]));
    }
    set_op_ranges(out_);
    out_.own_form = true;
    return std::move(out_);
  }

 private:
  struct Matrices {  // of one expert
    std::int32_t gate = kNone, up = kNone, down = kNone;
  };

  // Those of an expert stand together.
  void split_parameters() {
    std::vector<std::int32_t> down_of(from_.parameters.size(), kNone);
    for (std::size_t i = 0; i < from_.ops.size(); ++i) {
      const Op& op = from_.ops[i];
      if (op.kind != OpKind::expert_linear) continue;
      if (from_.ops[i + 1].kind != OpKind::swiglu) continue;
      down_of[static_cast<std::size_t>(op.params[0])] = from_.ops[i + 2].params[0];
    }
    out_.parameters.clear();
    out_.ops.clear();
    for (std::size_t p = 0; p < from_.parameters.size(); ++p) {
      const bool down = std::find(down_of.begin(), down_of.end(), static_cast<std::int32_t>(p)) != down_of.end();
      moved_.push_back(static_cast<std::int32_t>(out_.parameters.size()));
      if (down) continue;
      if (down_of[p] == kNone) out_.parameters.push_back(from_.parameters[p]);
      else split(p, static_cast<std::size_t>(down_of[p]));
    }
  }

  void split(std::size_t wide, std::size_t down) {
    const Parameter &up_and_gate = from_.parameters[wide], &last = from_.parameters[down];
    for (std::int64_t e = 0; e < up_and_gate.shape[0]; ++e) {
      const std::string prefix = owner_of(up_and_gate.name) + std::to_string(e);
      const auto part = [&](const Parameter& of, const char* name, std::int64_t rows) {
        Parameter one = of;
        one.part_of = of.name, one.name = prefix + name, one.shape = {rows, of.shape[2]};
        out_.parameters.push_back(std::move(one));
        return static_cast<std::int32_t>(out_.parameters.size()) - 1;
      };
      const std::int64_t ffn = up_and_gate.shape[1] / 2;
      const std::int32_t gate = part(up_and_gate, "_w1", ffn), second = part(last, "_w2", last.shape[1]);
      experts_of_[wide].push_back({gate, part(up_and_gate, "_w3", ffn), second});
    }
  }

  Op renumbered(Op op) const {
    for (std::int32_t& p : op.params) p = moved_[static_cast<std::size_t>(p)];
    if (op.kind == OpKind::moe_route) op.shape.wide_weight = false;
    return op;
  }

  std::int32_t copy_of(std::int32_t like) {
    out_.tensors.push_back(Tensor(out_.tensors[static_cast<std::size_t>(like)]));
    return static_cast<std::int32_t>(out_.tensors.size()) - 1;
  }

  // dispatch, gate and up in one, swiglu, down, combine. Answers with the last of them.
  std::size_t loop(std::size_t first) {
    const Op &dispatch = from_.ops[first], &wide = from_.ops[first + 1], &act = from_.ops[first + 2],
             &down = from_.ops[first + 3], &combine = from_.ops[first + 4];
    Experts one = dispatch.shape.experts;
    one.alone = true;
    for (std::int32_t made : {dispatch.outputs[0], wide.outputs[0], act.outputs[0], down.outputs[0]})
      out_.tensors[static_cast<std::size_t>(made)].experts = one;
    out_.tensors[static_cast<std::size_t>(wide.outputs[0])].width = act.shape.width;
    const std::vector<Matrices>& experts = experts_of_[static_cast<std::size_t>(wide.params[0])];
    std::int32_t sum = kNone;
    for (std::size_t e = 0; e < experts.size(); ++e) {
      const bool old = e == 0;  // the first takes the tensors that there are
      const auto add = [&](Op op, std::vector<std::int32_t> inputs, std::int32_t made, std::int32_t parameter) {
        op.shape.experts = one, op.shape.packed = op.shape.wide_weight = false;
        op.inputs = std::move(inputs), op.outputs = {made};
        if (parameter != kNone) op.params = {parameter};
        out_.ops.push_back(std::move(op));
        return made;
      };
      const auto rows_of = [&](std::int32_t like) { return old ? like : copy_of(like); };
      Op half = wide;
      half.shape.out = act.shape.width;
      const auto rows = add(dispatch, dispatch.inputs, rows_of(dispatch.outputs[0]), kNone);
      const auto gate = add(half, {rows}, rows_of(wide.outputs[0]), experts[e].gate);
      const auto up = add(half, {rows}, copy_of(wide.outputs[0]), experts[e].up);
      const auto product = add(act, {gate, up}, rows_of(act.outputs[0]), kNone);
      const auto result = add(down, {product}, rows_of(down.outputs[0]), experts[e].down);
      std::vector<std::int32_t> read = {result, combine.inputs[1], combine.inputs[2]};
      if (sum != kNone) read.push_back(sum);
      const bool last = e + 1 == experts.size();
      sum = add(combine, std::move(read), last ? combine.outputs[0] : copy_of(combine.outputs[0]), kNone);
    }
    return first + 4;
  }

  const ModelGraph from_;
  ModelGraph out_;
  std::vector<std::vector<Matrices>> experts_of_;  // by the parameter that has gate and up of all
  std::vector<std::int32_t> moved_;                // by parameter: its new number
};

}  // namespace

bool has_experts(const ModelGraph& model) {
  return std::any_of(model.ops.begin(), model.ops.end(),
                     [](const Op& op) { return op.kind == OpKind::expert_linear || is_expert_in_turn(op); });
}

bool has_looped_experts(const ModelGraph& model) {
  return std::any_of(model.ops.begin(), model.ops.end(), [](const Op& op) { return op.shape.experts.alone; });
}

ModelGraph with_torchtitan_experts(ModelGraph model, TorchtitanExperts how) {
  if (!has_experts(model)) return model;
  separate_gate_and_up(model);
  set_gpt_oss(model);
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

std::int64_t dim_of_part(const Parameter& p, std::int64_t dim) {
  return !p.part_of.empty() && p.shape.size() == 2 ? std::max<std::int64_t>(dim - 1, 0) : dim;
}

ModelGraph with_looped_experts(ModelGraph model) {
  if (!has_experts(model)) return model;
  const bool known = std::none_of(model.ops.begin(), model.ops.end(), [](const Op& op) {
    return op.kind == OpKind::expert_linear && (op.shape.transposed || op.params.size() > 1);
  });
  if (known) return Loops(std::move(model)).build();
  model.own_form = true;  // which no implementation knows
  return model;
}

}  // namespace fsdp
