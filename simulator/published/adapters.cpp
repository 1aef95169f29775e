#include "simulator/published/adapters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "models/graph/four_bits.h"
#include "models/hub/tensors.h"
#include "models/input/error.h"
#include "models/input/split.h"
#include "models/input/suggest.h"
#include "simulator/published/reading/cells.h"
#include "simulator/published/software/run_software.h"

namespace fsdp {
namespace {

// As tables shorten the names of a block's linear layers.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kLayers{{{"q", "q_proj"},
                                                                                {"k", "k_proj"},
                                                                                {"v", "v_proj"},
                                                                                {"o", "o_proj"},
                                                                                {"gate", "gate_proj"},
                                                                                {"up", "up_proj"},
                                                                                {"down", "down_proj"}}};

std::vector<std::string> layers_of(std::string_view cell) {
  std::vector<std::string> out;
  for (const std::string_view word : split(cell, ',')) {
    std::string found;
    for (const auto& [brief, layer] : kLayers)
      if (word == brief || word == layer) found = layer;
    if (found.empty()) not_modelled("lora_targets", std::string(cell));
    out.push_back(std::move(found));
  }
  return out;
}

// ATorch's table writes "LoRA" behind the model's name; its launch script has these (fsdp_llama2_entry.sh).
constexpr std::string_view kNamed = " lora";
LoraSpec of_atorch() {
  return {.rank = 16, .alpha = 16, .targets = {"q_proj", "v_proj", "k_proj", "o_proj"}, .dropout = 0.05};
}

// prime-rl's notes: "4 LoRA adapters allocated"; 1: they say nothing.
std::int64_t held_of(const PublishedRun& run) {
  constexpr std::string_view kWords = " lora adapters allocated";
  constexpr std::int64_t kMost = 1024;
  const std::string notes = lower_case(run.notes);
  const std::size_t end = notes.find(kWords);
  if (stack_of(run) != Stack::prime || end == std::string::npos) return 1;
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(notes[begin - 1])) != 0) --begin;
  std::int64_t held = 0;
  for (std::size_t i = begin; i < end && held <= kMost; ++i) held = 10 * held + (notes[i] - '0');
  if (held < 1 || held > kMost) cannot("notes", "adapters allocated are not between 1 and 1,024");
  return held;
}

}  // namespace

bool names_adapters(const PublishedRun& run) {
  return stack_of(run) == Stack::atorch && lower_case(run.model).ends_with(kNamed);
}

std::string base_model_of(const PublishedRun& run) {
  return run.model.substr(0, run.model.size() - (names_adapters(run) ? kNamed.size() : 0));
}

std::optional<RunAdapters> adapters_of(const PublishedRun& run, std::vector<std::string>& assumptions) {
  std::optional<RunAdapters> out;
  if (names_adapters(run) && says_no(run.lora) && !run.lora_rank) {
    assumptions.emplace_back(
        "adapters of rank 16 on q_proj, v_proj, k_proj and o_proj with a dropout of 0.05, as in the source's launch "
        "script; gradients down to the embedding (enable_input_require_grads)");
    return RunAdapters{.layers = of_atorch()};
  }
  if (!says_no(run.lora)) out = RunAdapters{.layers = parse_lora(run.lora, "lora")};
  // trl leaves models alone that it shards, and is known to do so by its 0.13 (sft_trainer.py).
  if (out && out->layers.base != FourBits::none && lower_case(run.framework) == "ddp")
    out->layers.prepared = says(run.notes, "prepared by trl");
  if (out && run.lora_rank && out->layers.rank != *run.lora_rank)
    cannot("lora_rank", fmt::format("{} contradicts lora, which says {}", *run.lora_rank, out->layers.rank));
  if (!out && !run.lora_rank) return out;
  if (!out) out = RunAdapters{.layers = {.rank = *run.lora_rank}};
  out->held = held_of(run);
  if (!run.lora_rank) return out;
  constexpr std::string_view kExperts = ",experts (w1,w2,w3)";
  std::string targets = lower_case(run.lora_targets);
  if (targets.ends_with(kExperts)) {
    if (stack_of(run) != Stack::prime) not_modelled("lora_targets", run.lora_targets);
    out->experts = true;  // where the model has some
    targets.resize(targets.size() - kExperts.size());
  }
  if (says(targets, "all linear") || says(targets, "all-linear") || (targets.empty() && !out->experts)) {
    assumptions.emplace_back("adapters of every linear layer but the head");
    return out;
  }
  out->layers.targets = layers_of(without_remark(targets));
  return out;
}

void keep_adapters_in_fp32(ShardingPlan& plan, const PublishedRun& run, const ModelGraph& model,
                           std::vector<std::string>& assumptions) {
  const bool mixed = plan.param_dtype != plan.master_dtype || plan.reduce_dtype != plan.master_dtype;
  if (model.prepared) {
    plan.trained_dtype = plan.reduce_dtype = DType::f32;
    assumptions.emplace_back("adapters and norms in fp32 under autocast, as trl prepares models in 4 bits");
    return;
  }
  if (!has_adapters(model) || four_bits_of(model) != FourBits::none || mixed || size_of(plan.master_dtype) != 2) return;
  if (stack_of(run) != Stack::hf || month_of(run).value_or(0) < month(2024, 8)) return;
  if (says(run.source, "torchtune")) return;   // its own, in the recipe's dtype
  if (plan.dialect == Dialect::fsdp2) return;  // it takes no units of two types without mixed precision
  plan.trained_dtype = DType::f32;
  if (plan.dialect == Dialect::ddp) plan.reduce_dtype = DType::f32;
  for (Unit& unit : plan.units)
    if (of_adapters(unit)) unit.param_dtype = unit.reduce_dtype = DType::f32;
  assumptions.emplace_back("adapters in fp32 beside weights in 16 bits, as peft makes them");
}

void name_dense_feed_forward(LoraSpec& layers, const ModelGraph& model) {
  const bool named = !layers.targets.empty();
  const bool dense = std::any_of(model.modules.begin(), model.modules.end(),
                                 [](const Module& m) { return m.name.ends_with(".mlp.gate_proj"); });
  const auto of_feed_forward = [](const std::string& layer) {
    return layer == "gate_proj" || layer == "up_proj" || layer == "down_proj";
  };
  if (dense)
    for (std::string& layer : layers.targets)
      if (of_feed_forward(layer)) layer.insert(0, "mlp.");
  std::erase_if(layers.targets, of_feed_forward);
  if (named && layers.targets.empty()) cannot("lora_targets", "name no linear layer of a model of experts");
}

void refuse_unknown_parallelism(const PublishedRun& run) {
  const std::array<std::pair<const char*, std::pair<std::optional<std::int64_t>, const char*>>, 3> kinds{
      {{"pp", {run.pp, "pipeline"}}, {"ep", {run.ep, "expert"}}, {"cp", {run.cp, "context"}}}};
  for (const auto& [column, said] : kinds)
    if (said.first.value_or(1) > 1)
      cannot(column, fmt::format("{} parallelism beside FSDP is not modelled", said.second));
  if (run.tp.value_or(1) == 1) return;
  if (uses_float8(run)) cannot("float8", "8-bit matrix products beside tensor parallelism are not modelled");
}

std::int64_t head_dim_of(const ModelGraph& model) {
  for (const Op& op : model.ops)
    if (op.kind == OpKind::attention) return op.shape.head_dim;
  return 0;
}

}  // namespace fsdp
