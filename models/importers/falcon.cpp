// Falcon 7B, 40B and 180B: LayerNorm, one matrix for q, k and v (one key head for all, or the queries of each key head
// together with it), rotary positions, GELU, attention and feed-forward side by side, tied embeddings. Its attention is
// always given a mask that is written out. Falcon-RW (ALiBi) is not modelled.
#include <fmt/format.h>

#include "models/importers/builder.h"
#include "models/importers/decoder.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

struct FalconShape {
  std::int64_t vocab, hidden, ffn, layers, heads, kv_heads, head_dim, norms;
  std::optional<std::int64_t> positions;
  double eps, theta;
  bool bias, grouped, tied;
};

FalconShape read(JsonObject& config) {
  FalconShape s{};
  require_boolean(config, "alibi", false);
  s.vocab = config.integer("vocab_size", 1, kMaxVocab);
  s.hidden = config.integer("hidden_size", 1, kMaxWidth);
  s.ffn = config.optional_integer("ffn_hidden_size", 1, kMaxWidth).value_or(4 * s.hidden);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  s.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  s.head_dim = split_heads(config, "hidden_size", s.hidden, s.heads);
  if (s.head_dim % 2 != 0)
    config.refuse("hidden_size", fmt::format("makes heads of {}", s.head_dim), "rotary positions need an even one");
  s.grouped = config.optional_boolean("new_decoder_architecture").value_or(false);
  const bool one_key = config.optional_boolean("multi_query").value_or(true);
  const std::int64_t stated = config.optional_integer("num_kv_heads", 1, kMaxHeads).value_or(s.heads);
  s.kv_heads = s.grouped ? stated : one_key ? 1 : s.heads;
  if (s.heads % s.kv_heads != 0)
    config.refuse("num_kv_heads", fmt::format("{} does not divide {} heads", s.kv_heads, s.heads), "use a divisor");
  require_boolean(config, "parallel_attn", true);
  s.norms = config.optional_integer("num_ln_in_parallel_attn", 1, 2).value_or(s.grouped ? 2 : 1);
  if (!s.grouped && s.norms == 2)
    config.refuse("num_ln_in_parallel_attn", "2 norms without new_decoder_architecture are not modelled");
  s.positions = config.optional_integer("max_position_embeddings", 1, kMaxPositions);
  s.eps = config.optional_number("layer_norm_epsilon", 1e-30, 1).value_or(1e-5);
  s.theta = rope_theta(config, 10000);
  s.bias = config.optional_boolean("bias").value_or(false);
  s.tied = config.optional_boolean("tie_word_embeddings").value_or(true);
  require_text(config, "activation", "gelu");
  return s;
}

struct FalconBlock {
  std::int32_t self, attention, qkv, dense, mlp, up, down, norm, mlp_norm;
};

FalconBlock add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const FalconShape& s) {
  const auto linear = [&](std::int32_t parent, std::string_view name, std::int64_t in, std::int64_t out) {
    return b.linear_module(parent, name, in, out, s.bias, "FalconLinear");
  };
  FalconBlock m{};
  m.self = b.block(list, index, "FalconDecoderLayer");
  m.attention = b.module(m.self, "self_attention", "FalconAttention");
  m.qkv = linear(m.attention, "query_key_value", s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim);
  m.dense = linear(m.attention, "dense", s.hidden, s.hidden);
  b.module(m.attention, "attention_dropout", "Dropout");
  m.mlp = b.module(m.self, "mlp", "FalconMLP");
  m.up = linear(m.mlp, "dense_h_to_4h", s.hidden, s.ffn);
  b.module(m.mlp, "act", "GELUActivation");
  m.down = linear(m.mlp, "dense_4h_to_h", s.ffn, s.hidden);
  if (s.norms == 2) {
    m.norm = b.norm_module(m.self, "ln_attn", "LayerNorm", s.hidden, true);
    m.mlp_norm = b.norm_module(m.self, "ln_mlp", "LayerNorm", s.hidden, true);
  } else {
    m.norm = m.mlp_norm = b.norm_module(m.self, "input_layernorm", "LayerNorm", s.hidden, true);
  }
  return m;
}

std::int32_t run_block(GraphBuilder& b, const FalconBlock& m, const FalconShape& s, std::int32_t x) {
  const auto normed = b.layer_norm(m.norm, x, s.eps);
  const auto mlp_normed = s.norms == 2 ? b.layer_norm(m.mlp_norm, x, s.eps) : normed;
  const auto qkv = b.linear(m.qkv, normed);
  const auto turned = b.rotary(m.attention, qkv,
                               {.heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_dim = s.head_dim,
                                .packed = true,
                                .theta = s.theta,
                                .interleaved = true});
  const auto mixed = b.attention(
      m.attention, {turned, qkv},
      {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .interleaved = true, .always_masked = true});
  const auto attention = b.linear(m.dense, mixed);
  const auto mlp = b.linear(m.down, b.gelu(m.mlp, b.linear(m.up, mlp_normed), false));
  const auto sum = b.add(m.self, mlp, attention);
  return b.add(m.self, x, sum);
}

}  // namespace

ModelGraph import_falcon(JsonObject& config, std::string_view where, std::int64_t /*seq_len*/) {
  const FalconShape s = read(config);
  GraphBuilder b("falcon", "FalconForCausalLM");
  const auto model = b.module(0, "transformer", "FalconModel");
  const auto embed = b.embedding_module(model, "word_embeddings", s.vocab, s.hidden);
  const auto list = b.list(model, "h");
  std::vector<FalconBlock> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "ln_f", "LayerNorm", s.hidden, true);
  b.module(model, "rotary_emb", "FalconRotaryEmbedding");
  const auto head = b.lm_head(embed, s.tied);

  auto x = b.embedding(embed, b.ids());
  for (const FalconBlock& m : blocks) x = run_block(b, m, s, x);
  return b.finish(b.linear(head, b.layer_norm(norm, x, s.eps)), s.vocab, s.positions, where);
}

}  // namespace fsdp
