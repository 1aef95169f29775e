#include "simulator/published/adapters.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "models/input/error.h"
#include "models/input/split.h"
#include "models/input/suggest.h"
#include "simulator/published/reading/cells.h"
#include "simulator/published/run_software.h"

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

bool of_feed_forward(const std::string& layer) {
  return layer == "gate_proj" || layer == "up_proj" || layer == "down_proj";
}

}  // namespace

std::optional<RunAdapters> adapters_of(const PublishedRun& run, std::vector<std::string>& assumptions) {
  std::optional<RunAdapters> out;
  if (!says_no(run.lora)) out = RunAdapters{.layers = parse_lora(run.lora, "lora")};
  if (!run.lora_rank) return out;
  if (out && out->layers.rank != *run.lora_rank)
    cannot("lora_rank", fmt::format("{} contradicts lora, which says {}", *run.lora_rank, out->layers.rank));
  if (!out) out = RunAdapters{.layers = {.rank = *run.lora_rank}};
  std::string targets = lower_case(run.lora_targets);
  if (const std::size_t at = targets.find(",experts"); at != std::string::npos) {
    if (targets.substr(at) != ",experts (w1,w2,w3)") not_modelled("lora_targets", run.lora_targets);
    out->experts = true;
    targets.resize(at);
  }
  if (targets.empty() || says(targets, "all linear") || says(targets, "all-linear"))
    assumptions.emplace_back("adapters of every linear layer but the head");
  else out->layers.targets = layers_of(targets);
  // In models of experts alone the names of a feed-forward's layers find nothing.
  if (run.experts) std::erase_if(out->layers.targets, of_feed_forward);
  if (says(run.notes, "4 lora adapters allocated")) out->held = 4;
  return out;
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
