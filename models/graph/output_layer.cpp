#include "models/graph/output_layer.h"

#include <algorithm>

#include "models/index.h"

namespace fsdp {

std::int32_t chunked_head(const ModelGraph& model) {
  const auto head = static_cast<std::int32_t>(model.ops.size()) - 2;
  if (head < 1 || !model.trace.empty()) return kNone;
  const Op &layer = model.ops[at(head)], &loss = model.ops[at(head + 1)];
  if (loss.kind != OpKind::cross_entropy || layer.kind != OpKind::linear || loss.inputs[0] != layer.outputs[0])
    return kNone;
  const auto reads = [&](const Op& op) { return std::count(op.inputs.begin(), op.inputs.end(), layer.inputs[0]); };
  std::int64_t readers = 0;
  for (const Op& op : model.ops) readers += reads(op);
  return readers == 1 && model.tensors[at(layer.inputs[0])].requires_grad ? head : kNone;
}

std::int32_t logits_op(const ModelGraph& model) {
  std::int32_t made = model.ops.back().inputs[0];
  for (auto i = static_cast<std::int32_t>(model.ops.size()) - 2; i >= 0; --i) {
    const Op& op = model.ops[static_cast<std::size_t>(i)];
    if (op.outputs[0] != made) continue;
    if (op.kind == OpKind::linear) return i;
    made = op.inputs[0];
  }
  return kNone;
}

}  // namespace fsdp
