#include "planner/lint/read_config.h"

#include <algorithm>
#include <utility>

#include "planner/lint/formats.h"

namespace fsdp {
namespace {

constexpr std::size_t kMostBytes = 256 * 1024;  // far more than a configuration that people write

// The first word that is no comment.
std::string_view first_word(std::string_view text) {
  while (!text.empty()) {
    const std::size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return {};
    text.remove_prefix(begin);
    if (text.front() != '#') return text.substr(0, text.find_first_of(" \t\r\n"));
    text.remove_prefix(std::min(text.find('\n'), text.size()));
  }
  return {};
}

}  // namespace

ReadConfig read_config(std::string_view text, std::string_view where, const ModelGraph& model) {
  if (text.size() > kMostBytes)
    throw InputError(
        {std::string(where)},
        "has " + std::to_string(text.size()) + " bytes, and at most " + std::to_string(kMostBytes) + " are read",
        "give the configuration alone");
  const std::string_view word = first_word(text);
  if (word.empty()) throw InputError({std::string(where)}, "is empty", "give a configuration");
  const auto has = [&](std::string_view key) { return text.find(key) != std::string_view::npos; };
  if (word.starts_with('{') && (has("\"architectures\"") || has("\"model_type\"")))
    throw InputError({std::string(where)}, "is the configuration of a model, not of its training",
                     "give what trains it (a file of Accelerate, AutoModel, torchtitan or an fsdp_plan), and this file "
                     "as --model");
  if (word.starts_with('{') && has("\"fsdp-plan/plan/"))
    throw InputError({std::string(where)}, "is a plan of fsdp-plan, not a framework's configuration",
                     "give it to `fsdp-plan simulate --plan`, or to `fsdp-plan plan --compare`");
  if (word.starts_with('{')) return read_fsdp_plan(text, where, model);
  if (word.starts_with('[')) return read_torchtitan(flat_toml(text, where), model, /*is_toml=*/true);
  if (looks_like_python(text)) {
    FlatConfig python = flat_python(text, where);
    const bool shards = std::any_of(python.values().begin(), python.values().end(),
                                    [](const FlatValue& v) { return v.key.starts_with("DistributedConfig."); });
    return shards ? read_distributed_config(std::move(python), model) : read_torchtitan(std::move(python), model);
  }
  if (names_argument(word)) return read_torchtitan(flat_arguments(text, where), model);
  if (text.find(" --parallelism.") != std::string_view::npos || text.find(" --training.") != std::string_view::npos)
    return read_torchtitan(flat_arguments(text, where), model);
  FlatConfig yaml = flat_yaml(text, where);
  const bool recipe = std::any_of(yaml.values().begin(), yaml.values().end(), [](const FlatValue& v) {
    return v.key.starts_with("distributed.") || v.key.starts_with("step_scheduler.");
  });
  return recipe ? read_automodel(std::move(yaml), model) : read_accelerate(std::move(yaml), model);
}

}  // namespace fsdp
