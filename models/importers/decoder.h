// What the configurations of decoders with RMSNorm, rotary positions and gated feed-forwards share: their sizes under
// the names that most of them use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/input/json.h"

namespace fsdp {

// Where a config says nothing: what the family's config class in transformers 5.23 says (files of the hub leave out
// what equals it).
struct DecoderDefaults {
  double eps = 1e-6, theta = 10000.0;
  std::int64_t vocab = 0, heads = 0;  // 0: the config must say it
  std::int64_t kv_heads = 0;          // 0: as many as heads
  std::int64_t head_dim = 0;          // 0: hidden_size over the heads
  std::optional<std::int64_t> positions = std::nullopt;
  bool tied = false;
};

struct DecoderShape {
  std::int64_t vocab = 0, hidden = 0, ffn = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::optional<std::int64_t> positions;
  double eps = 0, theta = 0;
  bool tied = false;
};

// `ffn_key`: intermediate_size, or what a family calls the width of its feed-forward.
[[nodiscard]] DecoderShape read_decoder(JsonObject& config, const DecoderDefaults&, std::string_view ffn_key);

// A number of the rotary positions: `key` inside rope_scaling, or inside rope_parameters where that is absent or empty;
// else `old_key` at the top, as transformers before 5 writes it.
[[nodiscard]] std::optional<double> rope_number(JsonObject& config, std::string_view old_key, std::string_view key,
                                                double least, double most);
[[nodiscard]] double rope_theta(JsonObject& config, double otherwise);

// A window per layer, 0: none. Where the config lists layer_types they say which layers have `window`; else `otherwise`
// stands.
[[nodiscard]] std::vector<std::int64_t> windows_by_type(JsonObject& config, std::int64_t window,
                                                        std::vector<std::int64_t> otherwise);

}  // namespace fsdp
