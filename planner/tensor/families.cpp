#include "planner/tensor/families.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "models/input/error.h"
#include "planner/tensor/styles.h"

namespace fsdp {
namespace {

// Decoders of Llama's form, whose modules have these names.
constexpr std::array<std::string_view, 4> kLlamaFamilies = {"llama", "mistral", "qwen2", "qwen3"};

struct Row {
  std::string_view leaf;
  TensorStyle style;
};
constexpr std::array kLlamaRows = {
    Row{"embed_tokens", TensorStyle::rowwise},
    Row{"input_layernorm", TensorStyle::sequence},
    Row{"q_proj", TensorStyle::colwise},
    Row{"k_proj", TensorStyle::colwise},
    Row{"v_proj", TensorStyle::colwise},
    Row{"q_norm", TensorStyle::sequence},
    Row{"k_norm", TensorStyle::sequence},
    Row{"o_proj", TensorStyle::rowwise},
    Row{"post_attention_layernorm", TensorStyle::sequence},
    Row{"gate_proj", TensorStyle::colwise},
    Row{"up_proj", TensorStyle::colwise},
    Row{"down_proj", TensorStyle::rowwise},
    Row{"norm", TensorStyle::sequence},
    Row{"lm_head", TensorStyle::colwise},
};

}  // namespace

TensorPlan family_tensor_plan(const ModelGraph& model) {
  if (std::find(kLlamaFamilies.begin(), kLlamaFamilies.end(), model.family) == kLlamaFamilies.end()) {
    std::string known;
    for (const std::string_view family : kLlamaFamilies) known += (known.empty() ? "" : ", ") + std::string(family);
    throw InputError(setting("tensor"), "no tensor plan is known for '" + model.name + "', of family " + model.family,
                     "leave it out; known: " + known);
  }
  TensorPlan plan;
  for (const Module& m : model.modules) {
    const std::size_t dot = m.name.rfind('.');
    const std::string_view leaf = std::string_view(m.name).substr(dot == std::string::npos ? 0 : dot + 1);
    const auto row = std::find_if(kLlamaRows.begin(), kLlamaRows.end(), [&](const Row& r) { return r.leaf == leaf; });
    if (row == kLlamaRows.end()) continue;
    const ModuleStyle style{pattern_of(m.name), row->style};
    if (std::find(plan.modules.begin(), plan.modules.end(), style) == plan.modules.end()) plan.modules.push_back(style);
  }
  return plan;
}

void set_tensor(ShardingPlan& plan, const ModelGraph& model, std::int64_t ranks) {
  if (ranks <= 1) return;
  plan.mesh.push_back({"tensor", ranks});
  plan.tensor_plan = family_tensor_plan(model);
}

}  // namespace fsdp
