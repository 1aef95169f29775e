// What the configurations of decoders with RMSNorm, rotary positions and gated feed-forwards share: their sizes under
// the names that most of them use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "models/input/json.h"

namespace fsdp {

// Where a config says nothing.
struct DecoderDefaults {
  double eps = 1e-6, theta = 10000.0;
  std::int64_t head_dim = 0;  // 0: hidden_size over the heads
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

// transformers < 5 writes rope_theta at the top, transformers 5 inside rope_parameters (rope_scaling in files between).
[[nodiscard]] double rope_theta(JsonObject& config, double otherwise);

// A window per layer, 0: none. Where the config lists layer_types they say which layers have `window`; else `otherwise`
// stands.
[[nodiscard]] std::vector<std::int64_t> windows_by_type(JsonObject& config, std::int64_t window,
                                                        std::vector<std::int64_t> otherwise);

}  // namespace fsdp
