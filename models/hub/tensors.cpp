#include "models/hub/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace fsdp {
namespace {

constexpr std::string_view kDown = ".lora_A.default.weight", kUp = ".lora_B.default.weight";
constexpr std::string_view kBaseLayer = ".base_layer.", kStacked = ".mlp.experts.", kFeedForward = ".mlp.";

// Of a file: gate and up stand together in one stacked matrix.
struct ExpertNames {
  std::string_view feed_forward, gate, up, down;
};
ExpertNames expert_names(const ModelGraph& model) {
  if (model.family == "mixtral") return {".block_sparse_moe.", "w1", "w3", "w2"};
  return {kFeedForward, "gate_proj", "up_proj", "down_proj"};
}

std::string replaced(std::string name, std::string_view from, std::string_view to) {
  if (const std::size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

std::vector<HubTensor> tensors_of_experts(const ModelGraph& model, const Parameter& p) {
  const ExpertNames names = expert_names(model);
  const std::string stem = replaced(p.name.substr(0, p.name.rfind('.') + 1), kFeedForward, names.feed_forward);
  const std::vector<std::string_view> matrices =
      p.name.ends_with(".gate_up_proj") ? std::vector{names.gate, names.up} : std::vector{names.down};
  const std::int64_t rows = p.shape[1] / static_cast<std::int64_t>(matrices.size());
  std::vector<HubTensor> tensors;
  for (std::int64_t e = 0; e < p.shape[0]; ++e)
    for (const std::string_view matrix : matrices)
      tensors.push_back({fmt::format("{}{}.{}.weight", stem, e, matrix),
                         {rows, p.shape[2]},
                         static_cast<std::int64_t>(tensors.size()) * rows * p.shape[2]});
  return tensors;
}

}  // namespace

LoraPart lora_part(const Parameter& p) {
  return p.name.ends_with(kDown) ? LoraPart::down : p.name.ends_with(kUp) ? LoraPart::up : LoraPart::none;
}

bool has_adapters(const ModelGraph& model) {
  return std::any_of(model.parameters.begin(), model.parameters.end(),
                     [](const Parameter& p) { return lora_part(p) != LoraPart::none; });
}

std::int64_t expert_count(const ModelGraph& model, const Parameter& p) {
  const Module& owner = model.modules[static_cast<std::size_t>(p.modules[0])];
  return owner.class_name.ends_with("Experts") && p.name.find(kStacked) != std::string::npos && p.shape.size() == 3
             ? p.shape[0]
             : 0;
}

std::vector<HubTensor> hub_tensors(const ModelGraph& model, const Parameter& p) {
  if (expert_count(model, p) > 0) return tensors_of_experts(model, p);
  if (lora_part(p) != LoraPart::none) return {{"base_model.model." + replaced(p.name, ".default.", "."), p.shape, 0}};
  const std::string name = replaced(p.name, kBaseLayer, ".");
  return {{replaced(name, kFeedForward, expert_names(model).feed_forward), p.shape, 0}};
}

}  // namespace fsdp
