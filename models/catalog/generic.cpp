#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/catalog.h"
#include "models/input/error.h"
#include "models/input/limits.h"

namespace fsdp {
namespace {

using Size = std::optional<std::int64_t>;

std::int64_t needed(const Size& size, std::string_view field, std::string_view example) {
  if (!size)
    throw InputError(setting(std::string(field)), "is missing, which a generic model needs",
                     fmt::format("give it, such as {}", example));
  return *size;
}

// The fields of the config.json that is made here, by the settings that they come from.
constexpr std::array kFields{std::pair{"hidden_size", "hidden"},
                             std::pair{"num_hidden_layers", "layers"},
                             std::pair{"num_attention_heads", "heads"},
                             std::pair{"num_key_value_heads", "kv_heads"},
                             std::pair{"head_dim", "head_dim"},
                             std::pair{"intermediate_size", "ffn"},
                             std::pair{"vocab_size", "vocab"},
                             std::pair{"num_local_experts", "experts"},
                             std::pair{"num_experts_per_tok", "experts_per_token"}};

}  // namespace

std::string generic_config(const GenericSizes& s) {
  nlohmann::json c = {{"model_type", s.experts ? "mixtral" : "llama"},
                      {"num_hidden_layers", needed(s.layers, "layers", "32")},
                      {"hidden_size", needed(s.hidden, "hidden", "4096")},
                      {"num_attention_heads", needed(s.heads, "heads", "32")},
                      {"intermediate_size", needed(s.ffn, "ffn", "14336")},
                      {"vocab_size", needed(s.vocab, "vocab", "128256")},
                      {"sliding_window", nullptr},
                      {"tie_word_embeddings", s.tied}};
  c["num_key_value_heads"] = s.kv_heads.value_or(*s.heads);
  if (s.head_dim) c["head_dim"] = *s.head_dim;
  if (s.experts) {
    c["num_local_experts"] = *s.experts;
    c["num_experts_per_tok"] = needed(s.experts_per_token, "experts_per_token", "2");
  } else if (s.experts_per_token) {
    throw InputError(setting("experts_per_token"), "needs a number of experts", "give it, or leave this out");
  }
  return c.dump(2) + "\n";
}

ModelGraph generic_model(const GenericSizes& s) {
  const std::string config = generic_config(s);
  try {
    ModelGraph graph = model_from_config(config, kGeneric);
    graph.name = kGeneric;
    graph.notes.emplace_back(fmt::format("built like {}, from its sizes alone", s.experts ? "Mixtral" : "Llama"));
    return graph;
  } catch (const InputError& e) {
    for (const auto& [field, name] : kFields)
      if (e.field() == field) throw e.at(setting(name));
    throw;
  }
}

}  // namespace fsdp
