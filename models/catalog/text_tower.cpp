#include "models/catalog/text_tower.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "models/input/error.h"
#include "models/input/json.h"

namespace fsdp {
namespace {

constexpr std::array kTowers{TextTower{"gemma3", "gemma3_text", "Gemma3"}, TextTower{"llava", "llama", "Llava"},
                             TextTower{"mistral3", "mistral", "Mistral3"},
                             TextTower{"qwen2_5_vl", "qwen2_5_vl_text", "Qwen2_5_VL"}};

constexpr std::string_view kOld = "model", kNew = "model.language_model";

void rename(std::string& name) {
  if (name == kOld || name.starts_with(std::string(kOld) + ".")) name.replace(0, kOld.size(), kNew);
}

}  // namespace

const TextTower* find_text_tower(std::string_view model_type) {
  for (const TextTower& t : kTowers)
    if (t.model_type == model_type) return &t;
  return nullptr;
}

std::vector<std::string_view> text_tower_types() {
  std::vector<std::string_view> types;
  for (const TextTower& t : kTowers) types.push_back(t.model_type);
  return types;
}

// The whole says whether embeddings are tied; in files before transformers 5, the sizes of Qwen's text model stand at
// the top.
std::string text_config(const TextTower& tower, std::string_view json_text, std::string_view where) {
  const nlohmann::json whole = nlohmann::json::parse(json_text);  // parsed before, strictly
  nlohmann::json text = whole;
  if (const auto at = whole.find("text_config"); at != whole.end()) {
    if (!at->is_object())
      throw InputError({std::string(where), "text_config"}, "is no object", "give the text model's");
    text = *at;
    if (const auto tied = whole.find("tie_word_embeddings"); tied != whole.end() && !tied->is_null())
      text["tie_word_embeddings"] = *tied;
    if (!text.contains("model_type")) text["model_type"] = tower.text_type;
  } else {
    text["model_type"] = tower.text_type;
  }
  return text.dump();
}

ModelGraph inside_whole(const TextTower& tower, ModelGraph g) {
  for (Module& m : g.modules) {
    rename(m.name);
    if (m.parent > 0) ++m.parent;
  }
  g.modules[0].class_name = fmt::format("{}ForConditionalGeneration", tower.prefix);
  Module whole = g.modules[1];
  whole.name = kOld;
  whole.class_name = fmt::format("{}Model", tower.prefix);
  g.modules[1].parent = 1;
  g.modules.insert(g.modules.begin() + 1, std::move(whole));
  for (Parameter& p : g.parameters) {
    rename(p.name);
    for (std::string& alias : p.aliases) rename(alias);
    for (std::int32_t& m : p.modules)
      if (m > 0) ++m;
  }
  for (Op& op : g.ops)
    if (op.module > 0) ++op.module;
  g.family = tower.model_type;
  g.notes.emplace_back(
      "the text model alone: what encodes images, video or sound, and its projector, are left out of parameters, time "
      "and memory");
  return g;
}

}  // namespace fsdp
