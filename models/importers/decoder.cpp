#include "models/importers/decoder.h"

#include <fmt/format.h>

#include <string>

#include "models/importers/importers.h"
#include "models/input/limits.h"

namespace fsdp {

double rope_theta(JsonObject& config, double otherwise) {
  if (const auto theta = config.optional_number("rope_theta", 1e-3, 1e15)) return *theta;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (auto rope = config.optional_object(key)) {
      if (const auto theta = rope->optional_number("rope_theta", 1e-3, 1e15)) return *theta;
    }
  }
  return otherwise;
}

DecoderShape read_decoder(JsonObject& config, const DecoderDefaults& defaults, std::string_view ffn_key) {
  DecoderShape s;
  s.vocab = config.integer("vocab_size", 1, kMaxVocab);
  s.hidden = config.integer("hidden_size", 1, kMaxWidth);
  s.ffn = config.integer(ffn_key, 1, kMaxWidth);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  s.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  s.kv_heads = config.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(s.heads);
  if (s.heads % s.kv_heads != 0)
    config.refuse("num_key_value_heads", fmt::format("{} does not divide {} heads", s.kv_heads, s.heads),
                  "use a divisor");
  const auto head_dim = config.optional_integer("head_dim", 1, kMaxHeads);
  s.head_dim = head_dim                ? *head_dim
               : defaults.head_dim > 0 ? defaults.head_dim
                                       : split_heads(config, "hidden_size", s.hidden, s.heads);
  if (s.head_dim % 2 != 0)
    config.refuse("head_dim", fmt::format("{} is odd", s.head_dim), "rotary positions need an even one");
  s.positions = config.optional_integer("max_position_embeddings", 1, kMaxPositions);
  s.eps = config.optional_number("rms_norm_eps", 1e-30, 1).value_or(defaults.eps);
  s.theta = rope_theta(config, defaults.theta);
  s.tied = config.optional_boolean("tie_word_embeddings").value_or(defaults.tied);
  return s;
}

std::vector<std::int64_t> windows_by_type(JsonObject& config, std::int64_t window,
                                          std::vector<std::int64_t> otherwise) {
  const auto types = config.find("layer_types");
  if (!types) return otherwise;
  const std::vector<std::string> names = types->texts();
  if (names.size() != otherwise.size())
    types->refuse(fmt::format("lists {} layers of {}", names.size(), otherwise.size()), "list every layer");
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] != "full_attention" && names[i] != "sliding_attention")
      types->refuse("knows no \"" + names[i] + "\"", "only full_attention and sliding_attention are modelled");
    otherwise[i] = names[i] == "sliding_attention" ? window : 0;
  }
  return otherwise;
}

}  // namespace fsdp
