#include "models/importers/decoder.h"

#include <fmt/format.h>

#include <string>

#include "models/importers/importers.h"
#include "models/input/limits.h"

namespace fsdp {

std::optional<double> rope_number(JsonObject& config, std::string_view old_key, std::string_view key, double least,
                                  double most) {
  for (const char* place : {"rope_scaling", "rope_parameters"}) {
    auto rope = config.optional_object(place);
    if (!rope || rope->keys().empty()) continue;
    if (const auto inside = rope->optional_number(key, least, most)) return inside;
    break;
  }
  return config.optional_number(old_key, least, most);
}

double rope_theta(JsonObject& config, double otherwise) {
  return rope_number(config, "rope_theta", "rope_theta", 1e-3, 1e15).value_or(otherwise);
}

DecoderShape read_decoder(JsonObject& config, const DecoderDefaults& defaults, std::string_view ffn_key) {
  DecoderShape s;
  const auto size = [&](std::string_view key, std::int64_t most, std::int64_t otherwise) {
    return config.has(key) || otherwise == 0 ? config.integer(key, 1, most) : otherwise;
  };
  s.vocab = size("vocab_size", kMaxVocab, defaults.vocab);
  s.hidden = config.integer("hidden_size", 1, kMaxWidth);
  s.ffn = config.integer(ffn_key, 1, kMaxWidth);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  // A list that is no list of these layers is refused where it decides no window, too, as transformers does.
  (void)windows_by_type(config, 0, std::vector<std::int64_t>(static_cast<std::size_t>(s.layers)));
  s.heads = size("num_attention_heads", kMaxHeads, defaults.heads);
  const bool silent = !config.has("num_key_value_heads") && defaults.kv_heads > 0;  // null: as many as heads
  s.kv_heads =
      silent ? defaults.kv_heads : config.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(s.heads);
  if (silent && s.heads % s.kv_heads != 0)
    config.refuse("num_key_value_heads",
                  fmt::format("is missing, and its default, {}, does not divide {} heads", s.kv_heads, s.heads),
                  "add it");
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
  if (!s.positions) s.positions = defaults.positions;
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
