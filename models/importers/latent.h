// Multi-head latent attention, DeepSeek's: queries, and keys with values, go through narrow projections with norms of
// their own; a part of each head's query turns, and a part of the keys that all heads share.
#pragma once

#include <cstdint>
#include <string_view>

#include "models/importers/builder.h"
#include "models/input/json.h"

namespace fsdp {

struct LatentShape {
  std::int64_t hidden = 0, heads = 0, q_rank = 0, kv_rank = 0;  // q_rank 0: queries have one projection
  std::int64_t plain = 0, rotated = 0, v_head_dim = 0;  // channels of a head: that do not turn, that do, of values
  double theta = 0;
  bool bias = false, wide_angles = false;  // OpShape's
};

// Of a config whose hidden size, heads and theta are read. `kv_heads`: refused where they are not the heads.
[[nodiscard]] LatentShape read_latent(JsonObject& config, std::int64_t hidden, std::int64_t heads,
                                      std::int64_t kv_heads, double theta);

struct LatentModules {
  std::int32_t self = kNone, q = kNone, q_a = kNone, q_norm = kNone, q_b = kNone, kv_a = kNone, kv_norm = kNone,
               kv_b = kNone, o = kNone;
};
[[nodiscard]] LatentModules add_latent(GraphBuilder&, std::int32_t self, std::string_view class_prefix,
                                       const LatentShape&);
[[nodiscard]] std::int32_t run_latent(GraphBuilder&, const LatentModules&, const LatentShape&, std::int32_t x);

}  // namespace fsdp
