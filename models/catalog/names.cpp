#include "models/catalog/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "models/catalog.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

// Models of the hub that are built exactly as the catalog's: the same parameters, ties, windows and positions.
struct HubName {
  std::string_view hub, catalog;
};
constexpr std::array kHubNames{
    HubName{"openai-community/gpt2", "gpt2"},
    HubName{"openai-community/gpt2-xl", "gpt2-xl"},
    HubName{"meta-llama/Llama-2-7b-hf", "llama2-7b"},
    HubName{"meta-llama/Llama-2-7b-chat-hf", "llama2-7b"},
    HubName{"meta-llama/Llama-2-13b-hf", "llama2-13b"},
    HubName{"meta-llama/Llama-2-13b-chat-hf", "llama2-13b"},
    HubName{"meta-llama/Llama-2-70b-hf", "llama2-70b"},
    HubName{"meta-llama/Llama-2-70b-chat-hf", "llama2-70b"},
    HubName{"meta-llama/Meta-Llama-3-8B", "llama3-8b"},
    HubName{"meta-llama/Meta-Llama-3-8B-Instruct", "llama3-8b"},
    HubName{"meta-llama/Meta-Llama-3-70B", "llama3-70b"},
    HubName{"meta-llama/Meta-Llama-3-70B-Instruct", "llama3-70b"},
    HubName{"meta-llama/Llama-3.1-405B", "llama3.1-405b"},
    HubName{"meta-llama/Llama-3.1-405B-Instruct", "llama3.1-405b"},
    HubName{"meta-llama/Meta-Llama-3.1-405B", "llama3.1-405b"},
    HubName{"mistralai/Mistral-7B-v0.1", "mistral-7b"},
    HubName{"mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"},
    HubName{"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
    HubName{"mosaicml/mpt-7b", "mpt-7b"},
    HubName{"allenai/OLMoE-1B-7B-0924", "olmoe-1b-7b"},
    HubName{"Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"},
    HubName{"Qwen/Qwen2.5-7B", "qwen2.5-7b"},
    HubName{"Qwen/Qwen3-0.6B", "qwen3-0.6b"},
    HubName{"Qwen/Qwen3-8B", "qwen3-8b"},
    HubName{"Qwen/Qwen3-32B", "qwen3-32b"},
    HubName{"Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"},
    HubName{"openai/gpt-oss-20b", "gpt-oss-20b"},
    HubName{"openai/gpt-oss-120b", "gpt-oss-120b"},
    HubName{"zai-org/GLM-4.5-Air", "glm-4.5-air"},
    HubName{"zai-org/GLM-4.5-Air-Base", "glm-4.5-air"},
    HubName{"deepseek-ai/DeepSeek-V2", "deepseek-v2"},
    HubName{"deepseek-ai/DeepSeek-V2-Chat", "deepseek-v2"},
    HubName{"deepseek-ai/DeepSeek-V2-Lite", "deepseek-v2-lite"},
    HubName{"deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"},
    HubName{"deepseek-ai/DeepSeek-Coder-V2-Lite-Base", "deepseek-v2-lite"},
    HubName{"deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", "deepseek-v2-lite"},
    HubName{"deepseek-ai/DeepSeek-V3", "deepseek-v3"},
    HubName{"deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"},
    HubName{"deepseek-ai/DeepSeek-R1", "deepseek-v3"},
};

std::string_view last_part(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return slash == std::string_view::npos ? name : name.substr(slash + 1);
}

// "organisation/model", as the hub writes it; not a path of more or fewer parts, nor a file.
bool hub_like(std::string_view spec) {
  const std::size_t slash = spec.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == spec.size() || spec.ends_with(".json") ||
      spec.find('/', slash + 1) != std::string_view::npos || spec.starts_with('.') || spec.starts_with('~'))
    return false;
  return std::all_of(spec.begin(), spec.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; });
}

}  // namespace

std::string plain_name(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

std::string catalog_name(std::string_view spec) {
  const bool whole = spec.find('/') != std::string_view::npos;
  const std::string wanted = plain_name(spec);
  if (wanted.empty() || (whole && !hub_like(spec))) return {};
  for (const HubName& n : kHubNames)
    if (plain_name(whole ? n.hub : last_part(n.hub)) == wanted) return std::string(n.catalog);
  if (!whole)
    for (const std::string& name : model_names())
      if (plain_name(name) == wanted) return name;
  return {};
}

std::string name_advice(std::string_view spec) {
  const bool path = spec.find('/') != std::string_view::npos || spec.ends_with(".json");
  if (path && !hub_like(spec)) return "check the path";
  const std::vector<std::string> near = nearest(last_part(spec), model_names());
  if (!path) {
    const std::string names = suggestion(spec, model_names());
    return names + (names.ends_with('?') ? " Or" : ", or") + " give the path of its config.json";
  }
  return fmt::format("fetch https://huggingface.co/{}/resolve/main/config.json and give that file{}", spec,
                     near.empty() ? "" : "; the catalog has " + join(near));
}

}  // namespace fsdp
