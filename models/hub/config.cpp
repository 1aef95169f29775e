#include "models/hub/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

std::string_view torch_name(DType type) {
  switch (type) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::i64: return "int64";
    case DType::f8: return "float8_e4m3fn";
  }
  return "float32";
}

// Why transformers builds no model of these parameters; empty: it does.
std::string unknown_to_transformers(const ModelGraph& model) {
  const std::string& root = model.modules[0].class_name;
  if (root.ends_with("ForConditionalGeneration"))
    return "these are the weights of the text model alone: put them beside the others of the whole model";
  if (model.family.ends_with("_vl_text")) return "transformers loads this text model inside the whole model alone";
  if (model.family != "mpt") return "";
  const bool biases = std::any_of(model.parameters.begin(), model.parameters.end(),
                                  [](const Parameter& p) { return p.name.ends_with(".bias"); });
  const bool other_positions = std::any_of(
      model.ops.begin(), model.ops.end(), [](const Op& op) { return op.kind == OpKind::attention && !op.shape.alibi; });
  const bool other_width = std::any_of(model.parameters.begin(), model.parameters.end(), [](const Parameter& p) {
    return p.name.ends_with(".ffn.up_proj.weight") && p.shape[0] != 4 * p.shape[1];
  });
  if (biases || other_positions || other_width)
    return "transformers builds MPT without biases, with ALiBi and a feed-forward of four times the width alone";
  return "";
}

bool scales_positions(const Json& config) {
  for (const char* place : {"rope_scaling", "rope_parameters"}) {
    const auto rope = config.find(place);
    if (rope == config.end() || !rope->is_object()) continue;
    for (const char* key : {"rope_type", "type"})
      if (const auto type = rope->find(key); type != rope->end() && type->is_string() && *type != "default")
        return true;
  }
  return false;
}

bool drops_tokens(const ModelGraph& model) {
  return std::any_of(model.ops.begin(), model.ops.end(), [](const Op& op) {
    const Experts& e = op.shape.experts;
    return op.kind == OpKind::moe_route &&
           e.capacity_factor * static_cast<double>(e.top_k) < static_cast<double>(e.count);
  });
}

bool is_tied(const ModelGraph& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [](const Parameter& p) { return !p.aliases.empty(); });
}

}  // namespace

std::string differs_from_transformers(std::string_view config, const ModelGraph& model) {
  std::string said;
  if (scales_positions(Json::parse(config)))
    said = "its config scales rotary positions, which a run does not: transformers turns them by other angles";
  if (drops_tokens(model))
    said += std::string(said.empty() ? "" : "; ") +
            "a run drops the tokens of full experts (capacity_factor), which transformers does not";
  return said;
}

HubConfig hub_config(std::string_view config, const ModelGraph& model, DType dtype) {
  if (std::string problem = unknown_to_transformers(model); !problem.empty()) return {"", std::move(problem)};
  Json j = Json::parse(config);
  if (!j.contains("model_type")) j["model_type"] = model.family;
  if (!j.contains("architectures")) j["architectures"] = {model.modules[0].class_name};
  if (!j.contains("tie_word_embeddings")) j["tie_word_embeddings"] = is_tied(model);
  j["dtype"] = torch_name(dtype);
  if (j.contains("torch_dtype")) j["torch_dtype"] = torch_name(dtype);
  j.erase("quantization_config");
  return {j.dump(2) + "\n", differs_from_transformers(config, model)};
}

}  // namespace fsdp
