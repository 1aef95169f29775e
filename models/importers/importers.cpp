#include "models/importers/importers.h"

#include <fmt/format.h>

#include "models/input/suggest.h"

namespace fsdp {

void require_boolean(JsonObject& config, std::string_view key, bool modelled) {
  const auto value = config.optional_boolean(key);
  if (value && *value != modelled)
    config.refuse(key, fmt::format("{} is not modelled", *value), fmt::format("only {} is", modelled));
}

void require_absent(JsonObject& config, std::string_view key) {
  if (config.find(key)) config.refuse(key, "is not modelled", "only null is");
}

void require_no_attention_dropout(JsonObject& config) {
  if (config.optional_number("attention_dropout", 0, 1).value_or(0) != 0)
    config.refuse("attention_dropout", "is not modelled: it keeps as much as the scores again", "only 0 is");
}

void require_text(JsonObject& config, std::string_view key, std::string_view modelled) {
  const auto value = config.optional_text(key);
  if (value && *value != modelled)
    config.refuse(key, "\"" + printable(*value) + "\" is not modelled", fmt::format("only \"{}\" is", modelled));
}

std::int64_t rotated_channels(JsonObject& config, std::int64_t head_dim, double share) {
  if (head_dim % 2 != 0)
    config.refuse("hidden_size", fmt::format("makes heads of {} channels", head_dim),
                  "rotary positions need an even number");
  const auto turned = static_cast<std::int64_t>(static_cast<double>(head_dim) * share);
  if (turned < 2 || turned % 2 != 0)
    config.refuse(config.has("partial_rotary_factor") ? "partial_rotary_factor" : "rope_parameters",
                  fmt::format("turns {} of {} channels of a head", turned, head_dim),
                  "rotary positions need an even number");
  return turned == head_dim ? 0 : turned;
}

std::int64_t split_heads(const JsonObject& config, std::string_view width_key, std::int64_t width, std::int64_t heads) {
  if (width % heads != 0)
    config.refuse(width_key, fmt::format("{} is not divisible by {} heads", width, heads), "correct one of them");
  return width / heads;
}

}  // namespace fsdp
