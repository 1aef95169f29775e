#include "models/catalog/text_tower.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "models/input/error.h"

namespace fsdp {
namespace {

// Ties: as transformers 5.23 makes them of what the whole and the text_config say, or do not say.
constexpr std::array kTowers{TextTower{"gemma3", "gemma3_text", "Gemma3", true, false},
                             TextTower{"llava", "llama", "Llava", false, true},
                             TextTower{"mistral3", "mistral", "Mistral3", true, false},
                             TextTower{"qwen2_5_vl", "qwen2_5_vl_text", "Qwen2_5_VL", false, true}};

std::optional<bool> stated_tie(const nlohmann::json& config, std::string_view where) {
  const auto tied = config.find("tie_word_embeddings");
  if (tied == config.end() || tied->is_null()) return std::nullopt;
  if (!tied->is_boolean())
    throw InputError({std::string(where), "tie_word_embeddings"}, "is neither true nor false", "give one of the two");
  return tied->get<bool>();
}

// "transformer.h.0", of a text model called "transformer", is "model.language_model.h.0".
void rename(std::string& name, const std::string& old) {
  if (name == old || name.starts_with(old + ".")) name.replace(0, old.size(), "model.language_model");
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

// In files before transformers 5, the sizes of Qwen's text model stand at the top.
std::string text_config(const TextTower& tower, std::string_view json_text, std::string_view where) {
  const nlohmann::json whole = nlohmann::json::parse(json_text);  // parsed before, strictly
  nlohmann::json text = whole;
  if (const auto at = whole.find("text_config"); at != whole.end()) {
    if (!at->is_object())
      throw InputError({std::string(where), "text_config"}, "is no object", "give the text model's");
    text = *at;
    const bool text_ties = stated_tie(text, where).value_or(false) && tower.text_ties;
    text["tie_word_embeddings"] = stated_tie(whole, where).value_or(tower.tied) || text_ties;
    if (!text.contains("model_type")) text["model_type"] = tower.text_type;
  } else {
    text["model_type"] = tower.text_type;
  }
  return text.dump();
}

ModelGraph inside_whole(const TextTower& tower, ModelGraph g) {
  const std::string old = g.modules[1].name;  // of the model without its head
  for (Module& m : g.modules) {
    rename(m.name, old);
    if (m.parent > 0) ++m.parent;
  }
  g.modules[0].class_name = fmt::format("{}ForConditionalGeneration", tower.prefix);
  Module whole = g.modules[1];
  whole.name = "model";
  whole.class_name = fmt::format("{}Model", tower.prefix);
  g.modules[1].parent = 1;
  g.modules.insert(g.modules.begin() + 1, std::move(whole));
  for (Parameter& p : g.parameters) {
    rename(p.name, old);
    for (std::string& alias : p.aliases) rename(alias, old);
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
