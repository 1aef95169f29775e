#include "planner/emit/adapters.h"

#include <fmt/format.h>

#include <algorithm>

#include "models/graph/four_bits.h"
#include "models/graph/output_layer.h"
#include "models/index.h"
#include "planner/emit/formats.h"
#include "planner/emit/pytorch_template.h"

namespace fsdp {

std::optional<Adapters> adapters_of(const ModelGraph& model) {
  constexpr std::string_view kBase = ".base_layer", kDown = ".lora_A.default.weight";
  Adapters a;
  std::vector<std::string> leaves, others;
  const auto leaf = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  for (const Parameter& p : model.parameters)
    if (p.name.ends_with(kDown)) a.rank = p.shape.front();
  if (a.rank == 0 || !model.trace.empty()) return std::nullopt;  // who exported the model brings it as it is
  a.base = four_bits_of(model);
  if (const std::int32_t head = logits_op(model); head >= 0)
    a.head = model.modules[at(model.ops[at(head)].module)].name;
  if (a.head.ends_with(kBase)) a.head.resize(a.head.size() - kBase.size());
  for (const Op& op : model.ops) {
    if (op.kind != OpKind::linear) continue;
    const std::string& module = model.modules[at(op.module)].name;
    a.dropout = std::max(a.dropout, op.shape.dropout);
    if (module.ends_with(kBase)) a.targets.push_back(module.substr(0, module.size() - kBase.size()));
    else if (!module.ends_with(".default")) others.push_back(leaf(module));
  }
  for (const Op& op : model.ops)
    if (op.kind == OpKind::scale && model.modules[at(op.module)].name == a.targets.front())
      a.alpha = op.shape.factor * static_cast<double>(a.rank);
  for (const std::string& target : a.targets) leaves.push_back(leaf(target));
  const bool by_leaf = std::none_of(others.begin(), others.end(), [&](const std::string& other) {
    return std::find(leaves.begin(), leaves.end(), other) != leaves.end();
  });
  if (by_leaf) a.targets = std::move(leaves);
  std::sort(a.targets.begin(), a.targets.end());
  a.targets.erase(std::unique(a.targets.begin(), a.targets.end()), a.targets.end());
  return a;
}

std::string lora_config(const Adapters& a) {
  return fmt::format("LoraConfig(r={}, lora_alpha={}, lora_dropout={}, target_modules={})", a.rank, number(a.alpha),
                     number(a.dropout), python_list(a.targets));
}

std::string adapters_by_hand(const Adapters& a, const ShardingPlan& plan) {
  // peft makes adapters fp32 unless it is told not to.
  std::string text = "adapters, and that all else is not trained: call peft's get_peft_model with " + lora_config(a) +
                     (plan.kept_dtype(/*trained=*/true) == DType::f32 ? "" : ", autocast_adapter_dtype=False");
  if (a.base == FourBits::none) return text;
  const std::string type = plan.master_dtype == DType::f16 ? "torch.float16" : "torch.bfloat16";
  return text + fmt::format(
                    ", on a model loaded with BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=\"nf4\", "
                    "bnb_4bit_use_double_quant={}, bnb_4bit_quant_storage={}, bnb_4bit_compute_dtype={})",
                    python(a.base == FourBits::nf4_double), type, type);
}

}  // namespace fsdp
