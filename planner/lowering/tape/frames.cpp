#include "planner/lowering/tape/frames.h"

#include <algorithm>

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

}  // namespace

std::vector<FrameHold> frame_holds(const ModelGraph& model, const Implementation& impl,
                                   std::span<const std::int32_t> producer) {
  std::vector<FrameHold> holds;
  for (const Module& m : model.modules) {
    if (m.container) continue;
    for (std::int32_t i = m.op_begin; i < m.op_end; ++i)
      for (const std::int32_t in : model.ops[at(i)].inputs)
        if (producer[at(in)] >= 0 && producer[at(in)] < m.op_begin) holds.push_back({in, m.op_end, m.op_begin});
  }
  if (!impl.frames_hold_variables) return holds;
  const auto variable = [&](std::int32_t tensor, const Module& of) {
    holds.push_back({tensor, of.op_end, of.op_begin + 1});
  };
  const bool learned_positions = std::any_of(model.ops.begin(), model.ops.end(),
                                             [](const Op& op) { return op.kind == OpKind::position_embedding; });
  for (std::size_t k = 0; k < model.ops.size(); ++k) {
    const Op& op = model.ops[k];
    const auto i = static_cast<std::int32_t>(k);
    if (op.kind != OpKind::embedding && op.kind != OpKind::position_embedding && op.kind != OpKind::attention) continue;
    const Module* m = module_around(model, i, 2);
    if (!m) continue;
    if (op.kind == OpKind::embedding) variable(op.outputs[0], *m);
    if (op.kind == OpKind::position_embedding) variable(kNone, *m);
    if (op.kind != OpKind::attention) continue;
    for (const std::int32_t in : op.inputs)
      if (producer[at(in)] >= 0) variable(in, *m);
    const Module* block = module_around(model, i, m->op_end - m->op_begin + 1);
    if (learned_positions && block) variable(model.ops[at(m->op_end - 1)].outputs[0], *block);
  }
  return holds;
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
    if (h.end - 1 > r.last) hold(h.tensor);
  return held;
}

}  // namespace fsdp
