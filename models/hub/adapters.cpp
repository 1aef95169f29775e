#include "models/hub/adapters.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "models/hub/tensors.h"
#include "models/input/error.h"
#include "models/input/json.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOtherAdapters =
    "give the adapters of this model, or plan and train with their rank, alpha and layers";

// The layers that have adapters.
std::vector<std::string> adapted_layers(const ModelGraph& model) {
  std::vector<std::string> layers;
  for (const Parameter& p : model.parameters)
    if (lora_part(p) == LoraPart::down) layers.push_back(p.name.substr(0, p.name.find(".lora_A.")));
  return layers;
}

std::string leaf(std::string_view name) { return std::string(name.substr(name.rfind('.') + 1)); }

// As short as peft takes them: the last parts of the names, if they name no other module.
std::vector<std::string> target_names(const ModelGraph& model, const LoraSpec& spec) {
  if (!spec.targets.empty()) return spec.targets;
  const std::vector<std::string> layers = adapted_layers(model);
  const std::set<std::string> adapted(layers.begin(), layers.end());
  std::set<std::string> leaves;
  for (const std::string& layer : layers) leaves.insert(leaf(layer));
  for (const Module& m : model.modules)
    if (leaves.contains(leaf(m.name)) && !adapted.contains(m.name)) return layers;
  return {leaves.begin(), leaves.end()};
}

bool adapts_conv1d(const ModelGraph& model) {
  return std::any_of(model.modules.begin(), model.modules.end(),
                     [](const Module& m) { return m.class_name == "Conv1D" && m.name.ends_with(".base_layer"); });
}

// What is multiplied to the results of the adapters.
double adapter_factor(const ModelGraph& model) {
  for (std::size_t i = 1; i < model.ops.size(); ++i) {
    const Op& up = model.ops[i - 1];
    if (up.kind == OpKind::linear &&
        lora_part(model.parameters[static_cast<std::size_t>(up.params[0])]) == LoraPart::up)
      return model.ops[i].shape.factor;
  }
  return 1;
}

// An empty list, object or text.
bool says_nothing(const JsonValue& value) {
  if (value.is_object()) return value.object().keys().empty();
  if (value.is_text()) return value.text().empty();
  return !value.is_integer() && value.array().empty();
}

std::int64_t adapter_rank(const ModelGraph& model) {
  for (const Parameter& p : model.parameters)
    if (lora_part(p) == LoraPart::down) return p.shape.front();
  return 0;
}

}  // namespace

std::string adapter_config(const ModelGraph& adapted, const LoraSpec& spec) {
  Json j;
  j["peft_type"] = "LORA";
  j["task_type"] = "CAUSAL_LM";
  j["base_model_name_or_path"] = nullptr;
  j["r"] = spec.rank;
  const double alpha = spec.alpha.value_or(static_cast<double>(spec.rank));
  if (alpha == static_cast<double>(static_cast<std::int64_t>(alpha)))
    j["lora_alpha"] = static_cast<std::int64_t>(alpha);
  else j["lora_alpha"] = alpha;
  j["target_modules"] = target_names(adapted, spec);
  j["lora_dropout"] = spec.dropout;
  j["bias"] = "none";
  j["fan_in_fan_out"] = adapts_conv1d(adapted);
  j["use_rslora"] = false;
  j["inference_mode"] = true;
  return j.dump(2) + "\n";
}

void check_adapter_config(std::string_view text, const std::string& where, const ModelGraph& adapted) {
  const JsonDocument document = parse_document(text, where, "");
  JsonObject config = document.root();
  if (const std::string type = config.text("peft_type"); type != "LORA")
    config.refuse("peft_type", "\"" + printable(type) + "\" is not LORA", kOtherAdapters);
  for (const char* key : {"alpha_pattern", "rank_pattern"})
    if (const auto pattern = config.optional_object(key); pattern && !pattern->keys().empty())
      config.refuse(key, "gives layers ranks or scales of their own, which are not modelled", "only {} is modelled");
  for (const char* key : {"use_dora", "lora_bias"})
    if (config.optional_boolean(key).value_or(false)) config.refuse(key, "true is not modelled", "only false is");
  if (const auto bias = config.optional_text("bias"); bias && *bias != "none")
    config.refuse("bias", "\"" + printable(*bias) + "\" is not modelled", "only \"none\" is");
  // Each of these changes what is computed, or which layers are adapted.
  for (const char* key :
       {"alora_invocation_tokens", "arrow_config", "corda_config", "eva_config", "exclude_modules", "layer_replication",
        "layers_to_transform", "modules_to_save", "qalora_config", "target_parameters", "trainable_token_indices"})
    if (const auto value = config.find(key); value && !says_nothing(*value))
      config.refuse(key, "is not modelled", "train adapters without it");
  // PiSSA and the like change the base weights, too.
  if (const auto init = config.find("init_lora_weights"); init && init->is_text() && init->text() != "gaussian")
    config.refuse("init_lora_weights",
                  "\"" + printable(init->text()) + "\" changes the base weights, which is not modelled",
                  "convert the adapters to plain LoRA (save_pretrained with path_initial_model_for_weight_conversion)");
  const std::int64_t r = config.integer("r", 1, kMaxInteger);
  if (const std::int64_t models = adapter_rank(adapted); r != models)
    config.refuse("r", fmt::format("the adapters have rank {}, the model's {}", r, models), kOtherAdapters);
  const auto rank = static_cast<double>(r);
  const double alpha = config.number("lora_alpha", 0, 1e15);
  const double factor = alpha / (config.optional_boolean("use_rslora").value_or(false) ? std::sqrt(rank) : rank);
  if (const double models = adapter_factor(adapted); std::abs(factor - models) > 1e-12 * models)
    config.refuse("lora_alpha", fmt::format("scales the adapters by {}, the model's by {}", factor, models),
                  kOtherAdapters);
}

}  // namespace fsdp
