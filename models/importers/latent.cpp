#include "models/importers/latent.h"

#include <fmt/format.h>

#include <string>
#include <tuple>

#include "models/importers/importers.h"

namespace fsdp {
namespace {

constexpr double kEps = 1e-6;  // of its two norms, whatever rms_norm_eps says

}  // namespace

LatentShape read_latent(JsonObject& config, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                        double theta) {
  LatentShape s{.hidden = hidden, .heads = heads, .theta = theta};
  if (kv_heads != heads)
    config.refuse("num_key_value_heads", fmt::format("{} of {} heads", kv_heads, heads),
                  "latent attention has as many heads of keys as of queries");
  const auto size = [&](std::string_view key, std::int64_t otherwise, std::int64_t most) {
    return config.optional_integer(key, 1, most).value_or(otherwise);
  };
  // Absent: the config class's own; null: none.
  s.q_rank = config.optional_integer("q_lora_rank", 1, kMaxWidth).value_or(config.has("q_lora_rank") ? 0 : 1536);
  s.kv_rank = size("kv_lora_rank", 512, kMaxWidth / 2);
  s.plain = size("qk_nope_head_dim", 128, kMaxHeads);
  s.rotated = size("qk_rope_head_dim", 64, kMaxHeads);
  s.v_head_dim = size("v_head_dim", 128, kMaxHeads);
  if (s.rotated % 2 != 0)
    config.refuse("qk_rope_head_dim", fmt::format("{} is odd", s.rotated), "rotary positions need an even one");
  if (heads > kMaxWidth / (s.plain + s.rotated + s.v_head_dim))
    config.refuse("num_attention_heads",
                  fmt::format("{} heads of keys and values of {} channels", heads, s.plain + s.rotated + s.v_head_dim),
                  "use fewer or smaller heads");
  s.bias = config.optional_boolean("attention_bias").value_or(false);
  if (config.has("rope_interleave") && !config.optional_boolean("rope_interleave").value_or(false))  // null: false
    config.refuse("rope_interleave", "false is not modelled", "only true is");
  return s;
}

LatentModules add_latent(GraphBuilder& b, std::int32_t self, std::string_view class_prefix, const LatentShape& s) {
  const std::string norm = std::string(class_prefix) + "RMSNorm";
  const std::int64_t q = s.heads * (s.plain + s.rotated);
  LatentModules m{.self = self};
  if (s.q_rank == 0) {
    m.q = b.linear_module(self, "q_proj", s.hidden, q, false);
  } else {
    m.q_a = b.linear_module(self, "q_a_proj", s.hidden, s.q_rank, s.bias);
    m.q_norm = b.norm_module(self, "q_a_layernorm", norm, s.q_rank, false);
    m.q_b = b.linear_module(self, "q_b_proj", s.q_rank, q, false);
  }
  m.kv_a = b.linear_module(self, "kv_a_proj_with_mqa", s.hidden, s.kv_rank + s.rotated, s.bias);
  m.kv_norm = b.norm_module(self, "kv_a_layernorm", norm, s.kv_rank, false);
  m.kv_b = b.linear_module(self, "kv_b_proj", s.kv_rank, s.heads * (s.plain + s.v_head_dim), false);
  m.o = b.linear_module(self, "o_proj", s.heads * s.v_head_dim, s.hidden, s.bias);
  return m;
}

std::int32_t run_latent(GraphBuilder& b, const LatentModules& m, const LatentShape& s, std::int32_t x) {
  const std::int64_t width = s.kv_rank + s.rotated;
  auto q = s.q_rank == 0 ? b.linear(m.q, x) : b.linear(m.q_b, b.rms_norm(m.q_norm, b.linear(m.q_a, x), 1, kEps));
  const auto compressed = b.linear(m.kv_a, x);
  const auto latent = b.rms_norm(m.kv_norm, compressed, 1, kEps, {.in = width});
  std::int32_t k = kNone;
  std::tie(q, k) = b.rotary_of_parts(m.self, q, compressed,
                                     {.in = width,
                                      .heads = s.heads,
                                      .kv_heads = 1,
                                      .head_dim = s.plain + s.rotated,
                                      .theta = s.theta,
                                      .rotated = s.rotated,
                                      .wide_angles = s.wide_angles});
  const auto kv = b.linear(m.kv_b, latent);
  return b.linear(m.o, b.attention(m.self, {q, kv, k},
                                   {.heads = s.heads,
                                    .kv_heads = s.heads,
                                    .head_dim = s.plain + s.rotated,
                                    .rotated = s.rotated,
                                    .v_head_dim = s.v_head_dim,
                                    .by_head = true}));
}

}  // namespace fsdp
