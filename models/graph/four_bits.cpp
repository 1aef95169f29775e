#include "models/graph/four_bits.h"

#include <algorithm>

#include "models/graph/output_layer.h"
#include "models/units.h"

namespace fsdp {
namespace {

constexpr std::int64_t kScaleBlock = 256;  // scales in 8 bits with one scale

// bitsandbytes' QuantState: the 16 values of NF4 and the scales in fp32; of scales in 8 bits those, their own scales,
// and the 256 values that they stand for. What was subtracted from them is a number alone, which is nowhere counted.
std::int64_t scale_bytes(std::int64_t numbers, FourBits kind) {
  const std::int64_t scales = scales_of(numbers), values = 16 * 4;
  if (kind == FourBits::nf4) return 4 * scales + values;
  return scales + 4 * ((scales + kScaleBlock - 1) / kScaleBlock) + 256 * 4 + values;
}

bool of_adapter(const std::string& module) {
  return module.find(".lora_A.") != std::string::npos || module.find(".lora_B.") != std::string::npos;
}

}  // namespace

ModelGraph in_four_bits(ModelGraph model, FourBits kind, const Origin& where) {
  if (kind == FourBits::none) return model;
  model.name += kind == FourBits::nf4 ? " on weights in nf4" : " on weights in nf4-double";
  const std::int32_t head = logits_op(model);
  bool any = false;
  for (std::size_t i = 0; i < model.ops.size(); ++i) {
    Op& op = model.ops[i];
    if (op.kind == OpKind::expert_linear)
      throw InputError(where, "weights in 4 bits of a model with experts are not modelled",
                       "leave out base=, or use a model without experts");
    if (op.kind != OpKind::linear || static_cast<std::int32_t>(i) == head) continue;
    Module& module = model.modules[static_cast<std::size_t>(op.module)];
    const bool packs = module.class_name == "Linear" || module.class_name == "Conv1D";  // not Falcon's own class
    if (!packs || of_adapter(module.name)) continue;
    any = true;
    Parameter& p = model.parameters[static_cast<std::size_t>(op.params[0])];
    if (p.trainable || p.modules.size() > 1)
      throw InputError(where, "\"" + p.name + "\" is " + (p.trainable ? "trained" : "another layer's, too"),
                       "weights in 4 bits are frozen, and of one layer");
    const std::int64_t numbers = p.numel();
    if (numbers % kFourBitsPacked != 0)
      throw InputError(where, "\"" + p.name + "\" has " + std::to_string(numbers) + " numbers, which 4 does not divide",
                       "leave out base=");
    p.shape = {numbers / kFourBitsPacked, 1};
    p.packed = kFourBitsPacked;
    p.scale_bytes = scale_bytes(numbers, kind);
    op.shape.four_bits = kind;
    module.class_name = "Linear4bit";
    if (!module.name.ends_with(".base_layer")) continue;
    op.shape.copied = true;
    model.modules[static_cast<std::size_t>(module.parent)].class_name = "Linear4bit";  // peft's class of that name
  }
  if (!any)
    throw InputError(where, "bitsandbytes packs no layer of " + model.name + ", only nn.Linear and Conv1D",
                     "leave out base=");
  return model;
}

FourBits four_bits_of(const ModelGraph& model) {
  for (const Op& op : model.ops)
    if (op.shape.four_bits != FourBits::none) return op.shape.four_bits;
  return FourBits::none;
}

}  // namespace fsdp
