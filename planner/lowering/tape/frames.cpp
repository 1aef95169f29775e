#include "planner/lowering/tape/frames.h"

#include <algorithm>
#include <utility>

#include "models/graph/experts.h"
#include "models/graph/output_layer.h"
#include "models/index.h"

namespace fsdp {
namespace {

// The innermost module around op i that has at least so many ops; nullptr: none.
const Module* module_around(const ModelGraph& model, std::int32_t i, std::int32_t ops) {
  const Module* best = nullptr;
  for (const Module& m : model.modules)
    if (!m.container && m.op_begin <= i && i < m.op_end && m.op_end - m.op_begin >= ops &&
        (!best || m.op_end - m.op_begin <= best->op_end - best->op_begin))
      best = &m;
  return best;
}

// The first op that reads what op i makes first; kNone: none.
std::int32_t reader_of(const ModelGraph& model, std::int32_t i) {
  const std::int32_t tensor = model.ops[at(i)].outputs[0];
  for (std::size_t k = at(i) + 1; k < model.ops.size(); ++k) {
    const std::vector<std::int32_t>& inputs = model.ops[k].inputs;
    if (std::find(inputs.begin(), inputs.end(), tensor) != inputs.end()) return static_cast<std::int32_t>(k);
  }
  return kNone;
}

// The module that is called with what op i has cast; nullptr: none.
const Module* called_with(const ModelGraph& model, std::int32_t i) {
  const std::int32_t reader = reader_of(model, i);
  const Module* called = nullptr;
  for (std::int32_t m = reader >= 0 ? model.ops[at(reader)].module : kNone; m >= 0; m = model.modules[at(m)].parent)
    if (model.modules[at(m)].op_begin > i && !model.modules[at(m)].container) called = &model.modules[at(m)];
  return called;
}

std::int32_t end_of_last_child(const ModelGraph& model, std::int32_t parent) {
  std::int32_t end = 0;
  for (const Module& m : model.modules)
    if (m.parent == parent) end = std::max(end, m.op_end);
  return end;
}

bool is_routed(OpKind kind) {
  return kind == OpKind::moe_route || kind == OpKind::moe_dispatch || kind == OpKind::moe_combine;
}

}  // namespace

std::vector<FrameHold> frame_holds(const ModelGraph& model, const Implementation& impl, const Workload& work,
                                   std::span<const std::int32_t> producer) {
  std::vector<FrameHold> holds;
  for (const Module& m : model.modules) {
    if (m.container) continue;
    for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
      for (const std::int32_t in : model.ops[at(i)].inputs)
        if (producer[at(in)] >= 0 && producer[at(in)] < m.op_begin) holds.push_back({in, m.op_end, m.op_begin});
  }
  for (const Op& op : model.ops) {  // what a module gathers before it runs is its argument, too
    if (op.shape.redistribution != Redistribution::gather) continue;
    const Module& m = model.modules[at(op.module)];
    holds.push_back({op.outputs[0], m.op_end, m.op_begin});
  }
  for (std::size_t k = 0; k < model.ops.size(); ++k) {  // and what a unit's hook casts for it
    const Op& op = model.ops[k];
    if (op.kind != OpKind::cast || op.shape.of_result) continue;
    if (const Module* m = called_with(model, static_cast<std::int32_t>(k)))
      holds.push_back({op.inputs[0], m->op_end, m->op_begin});
  }
  const bool all = impl.frames_hold_variables;
  const auto variable = [&](std::int32_t tensor, const Module& of) {
    holds.push_back({tensor, of.op_end, of.op_begin + 1});
  };
  // A variable of the function that computes the loss.
  const bool head_reads = gives_outputs(impl) || (all && (work.loss_in_model || model.prepared));
  if (const std::int32_t head = head_reads ? logits_op(model) : kNone; head >= 0) {
    std::int32_t in = model.ops[at(head)].inputs[0];
    const std::int32_t by = producer[at(in)];
    if (by >= 0 && model.ops[at(by)].kind == OpKind::cast) in = model.ops[at(by)].inputs[0];  // autocast's
    const auto end = static_cast<std::int32_t>(model.ops.size());
    holds.push_back({in, end, 1});
    // Logits are returned beside the loss, unless its function lets go of them.
    const MemoryScript inside = facts(impl, model.ops.back(), work, model).forward_inside.script;
    const MemoryScript::Step lets_go{false, MemoryScript::What::input, 0};
    if (work.loss_in_model && std::ranges::find(inside.steps(), lets_go) == inside.steps().end())
      holds.push_back({model.ops.back().inputs[0], end, 0});
  }
  const bool loops = has_looped_experts(model);
  const bool learned_positions = std::any_of(model.ops.begin(), model.ops.end(),
                                             [](const Op& op) { return op.kind == OpKind::position_embedding; });
  // What is scaled, and all of experts' products, whose adapters are in the same function.
  for (const Op& op : model.ops) {
    if (!all || !impl.frames_hold_adapters) break;
    const Module& m = model.modules[at(op.module)];
    const bool experts = op.shape.experts.count > 0;
    if (op.kind == OpKind::scale || (op.kind == OpKind::add && experts)) variable(op.inputs[0], m);
    if (experts && (op.kind == OpKind::add || op.kind == OpKind::swiglu)) variable(op.outputs[0], m);
  }
  // What peft's layer casts for its adapter is a variable of the layer's function; what hooks cast is not.
  for (const Op& op : model.ops)
    if (all && op.shape.of_adapter && size_of(*op.shape.dtype) > size_of(*op.shape.from))
      variable(op.outputs[0], model.modules[at(op.module)]);
  for (std::size_t k = 0; k < model.ops.size(); ++k) {
    const Op& op = model.ops[k];
    const auto i = static_cast<std::int32_t>(k);
    const bool latent = op.shape.in > 0 && (op.kind == OpKind::rms_norm || op.kind == OpKind::rotary);
    if (!all && !is_routed(op.kind)) continue;
    if (op.kind != OpKind::embedding && op.kind != OpKind::position_embedding && op.kind != OpKind::attention &&
        !is_routed(op.kind) && !latent)
      continue;
    const Module* m = module_around(model, i, 2);
    if (!m) continue;
    for (std::size_t in = 0; latent && in < op.inputs.size(); ++in) variable(op.inputs[in], *m);
    if (latent && op.kind == OpKind::rms_norm) variable(op.outputs[0], *m);
    if (op.shape.experts.alone && op.kind == OpKind::moe_combine) continue;
    if (op.shape.experts.alone && op.kind == OpKind::moe_dispatch) {  // until the next expert has found its own
      std::int32_t next = i + 1;
      while (next < m->op_end && model.ops[at(next)].kind != OpKind::moe_dispatch) ++next;
      if (next < m->op_end) holds.push_back({op.outputs[0], next + 1, kNone});
      else variable(op.outputs[0], *m);
      continue;
    }
    if (op.kind == OpKind::moe_dispatch) {  // of the function that multiplies its rows
      const std::int32_t reader = reader_of(model, i);
      const Module* experts = reader >= 0 ? module_around(model, reader, 2) : nullptr;
      variable(op.outputs[0], experts ? *experts : *m);
    }
    if (op.kind == OpKind::moe_combine) variable(op.inputs[0], *m);
    if (const Module* mixture =
            op.kind == OpKind::moe_route ? module_around(model, i, m->op_end - m->op_begin + 1) : nullptr) {
      for (const std::int32_t tensor : op.outputs) variable(tensor, *mixture);
      // transformers' routers return their logits, too.
      if (!model.own_form || loops) variable(op.inputs[0], *mixture);
    }
    if (op.kind == OpKind::embedding) variable(op.outputs[0], *m);
    if (op.kind == OpKind::position_embedding) variable(kNone, *m);
    if (op.kind != OpKind::attention) continue;
    for (const std::int32_t in : op.inputs) {
      if (producer[at(in)] < 0) continue;
      const Op& by = model.ops[at(producer[at(in)])];
      variable(by.kind == OpKind::cast ? by.inputs[0] : in, *m);  // what autocast casts is its function's
    }
    const Module* block = module_around(model, i, m->op_end - m->op_begin + 1);
    if (learned_positions && block) variable(model.ops[at(m->op_end - 1)].outputs[0], *block);
  }
  return holds;
}

FrameHolds::FrameHolds(std::vector<FrameHold> holds, std::span<const std::int32_t> producer, std::size_t ops)
    : holds_(std::move(holds)), of_op_(ops) {
  for (std::size_t k = 0; k < holds_.size(); ++k) {
    const FrameHold& h = holds_[k];
    of_op_[at(h.end - 1)].push_back(static_cast<std::int32_t>(k));
    if (h.tensor >= 0 && producer[at(h.tensor)] >= 0)
      of_op_[at(producer[at(h.tensor)])].push_back(static_cast<std::int32_t>(k));
  }
}

std::vector<FrameHold> FrameHolds::near(const Region& r) const {
  std::vector<std::int32_t> places;
  for (std::int32_t i = r.begin; i <= r.last && !of_op_.empty(); ++i)
    places.insert(places.end(), of_op_[at(i)].begin(), of_op_[at(i)].end());
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  std::vector<FrameHold> found;
  for (const std::int32_t k : places) found.push_back(holds_[at(k)]);
  return found;
}

void hold_frames(std::span<const FrameHold> holds, std::span<const std::int32_t> forward_value, std::int32_t looked_up,
                 std::span<const std::uint32_t> forward_of, std::vector<Held>& held) {
  for (const FrameHold& h : holds) {
    const std::int32_t value = h.tensor >= 0 ? forward_value[at(h.tensor)] : looked_up;
    if (value >= 0) held.push_back({value, -1, static_cast<std::int32_t>(forward_of[at(h.end - 1)]), h.scope});
  }
}

void hold_frames_again(std::span<const FrameHold> holds, const Region& r,
                       std::span<const std::int32_t> recomputed_value, std::span<const std::int32_t> last_run,
                       std::vector<Held>& held) {
  for (const FrameHold& h : holds) {
    if (h.end <= r.begin || h.end > r.last || h.tensor < 0 || recomputed_value[at(h.tensor)] < 0) continue;
    held.push_back({recomputed_value[at(h.tensor)], -1, last_run[at(h.end - 1)], h.scope});
  }
}

void hold_variables_again(std::span<const FrameHold> values, const Region& r, std::span<const std::int32_t> last_run,
                          std::int32_t now, std::vector<Held>& held) {
  for (const FrameHold& v : values) {
    if (v.end <= r.last) held.push_back({v.tensor, -1, last_run[at(v.end - 1)], v.scope});
    else held.push_back({v.tensor, -1, now});
  }
}

std::vector<ModuleVariable> module_variables(const ModelGraph& model, const OpFacts& f, std::int32_t i,
                                             std::span<const char> wide, bool discarded) {
  std::vector<ModuleVariable> made;
  if (f.variable_bytes == 0 && f.passed_bytes == 0) return made;
  const Op& op = model.ops[at(i)];
  if (op.module < 0) {
    if (f.passed_bytes > 0) made.push_back({f.passed_bytes, BufferKind::saved, false, false, i + 1, kNone});
    return made;
  }
  const Module& m = model.modules[at(op.module)];
  const auto add = [&](std::int64_t bytes, BufferKind kind, bool before_hook) {
    if (bytes > 0) made.push_back({bytes, kind, before_hook, false, m.op_end, m.op_begin + (before_hook ? 0 : 1)});
  };
  // The hook of the module's unit casts what is fp32 and not used as such: an argument as long as the hooks run.
  const Op& last = model.ops[at(m.op_end - 1)];
  if (!last.shape.wide_weight &&
      std::any_of(last.inputs.begin(), last.inputs.end(), [&](std::int32_t in) { return wide[at(in)] != 0; }))
    add(f.passed_bytes, BufferKind::scratch, /*before_hook=*/true);
  std::int32_t again = i + 1;  // where the same function assigns the variable again
  while (again < m.op_end && (model.ops[at(again)].kind != op.kind || model.ops[at(again)].module != op.module ||
                              joins_experts(model.ops[at(again)])))
    ++again;
  const std::int64_t bytes = f.variable_bytes - (discarded ? 0 : f.variable_saved_bytes);
  if (bytes > 0 && f.returns_variables) {
    const std::int32_t end = end_of_last_child(model, m.parent);
    if (end > i + 1)
      made.push_back({bytes, BufferKind::scratch, false, true, end, model.modules[at(m.parent)].op_begin + 1});
  } else if (bytes > 0 && again < m.op_end) {
    made.push_back({bytes, BufferKind::scratch, false, false, again, kNone});
  } else {
    add(bytes, BufferKind::scratch, false);
  }
  add(f.passed_bytes, BufferKind::saved, false);
  return made;
}

std::vector<std::int32_t> held_by_recomputation(const ModelGraph& model, const Region& r,
                                                std::span<const FrameHold> holds,
                                                std::span<const std::int32_t> producer) {
  std::vector<std::int32_t> held;
  const auto hold = [&](std::int32_t tensor) {
    if (tensor >= 0 && producer[at(tensor)] >= r.begin && producer[at(tensor)] <= r.last) held.push_back(tensor);
  };
  for (std::int32_t i = r.last + 1; i < r.end; ++i)
    for (const std::int32_t in : model.ops[at(i)].inputs) hold(in);
  for (const FrameHold& h : holds)
    if (h.end - 1 >= r.last) hold(h.tensor);
  return held;
}

}  // namespace fsdp
