// MPT: pre-LayerNorm decoder with a fused Wqkv, GELU and a tied head. transformers builds only the published form (no
// biases, ALiBi); MosaicML's llm-foundry, which trained it, also builds one with biases (no_bias: false) and one with
// learned positions (attn_config.alibi: false), whose table has one row per position of the run's sequences. Both are
// followed here, with the names of transformers plus llm-foundry's "wpe".
#include <fmt/format.h>

#include "models/importers/builder.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

struct MptShape {
  std::int64_t vocab, width, layers, heads, ffn, positions;
  double eps;
  bool bias, alibi, learned_positions, tied;
};

void read_attention(JsonObject& config, MptShape& s) {
  s.alibi = true;  // the default of transformers' MptAttentionConfig
  auto attention = config.optional_object("attn_config");
  if (!attention) return;
  s.alibi = attention->optional_boolean("alibi").value_or(true);
  require_text(*attention, "attn_type", "multihead_attention");
  require_boolean(*attention, "qk_ln", false);
  require_boolean(*attention, "prefix_lm", false);
  require_absent(*attention, "clip_qkv");
  require_absent(*attention, "softmax_scale");
}

MptShape read(JsonObject& config, std::int64_t seq_len) {
  MptShape s{};
  s.vocab = config.integer("vocab_size", 1, kMaxVocab);
  s.width = config.integer("d_model", 1, kMaxWidth);
  s.layers = config.integer("n_layers", 1, kMaxLayers);
  s.heads = config.integer("n_heads", 1, kMaxHeads);
  s.ffn = s.width * config.optional_integer("expansion_ratio", 1, 1024).value_or(4);
  s.positions = config.integer("max_seq_len", 1, kMaxPositions);
  s.eps = config.optional_number("layer_norm_epsilon", 1e-30, 1).value_or(1e-5);
  s.bias = !config.optional_boolean("no_bias").value_or(true);
  s.tied = config.optional_boolean("tie_word_embeddings").value_or(true);
  require_absent(config, "logit_scale");
  read_attention(config, s);
  s.learned_positions = !s.alibi && config.optional_boolean("learned_pos_emb").value_or(true);
  if (s.learned_positions && seq_len > 0) s.positions = seq_len;
  return s;
}

struct MptBlock {
  std::int32_t self, norm_1, attention, qkv, projection, norm_2, ffn, up, down;
};

MptBlock add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const MptShape& s) {
  MptBlock m{};
  m.self = b.block(list, index, "MptBlock");
  m.norm_1 = b.norm_module(m.self, "norm_1", "LayerNorm", s.width, s.bias);
  m.attention = b.module(m.self, "attn", "MptAttention");
  m.qkv = b.linear_module(m.attention, "Wqkv", s.width, 3 * s.width, s.bias);
  m.projection = b.linear_module(m.attention, "out_proj", s.width, s.width, s.bias);
  m.norm_2 = b.norm_module(m.self, "norm_2", "LayerNorm", s.width, s.bias);
  m.ffn = b.module(m.self, "ffn", "MptMLP");
  m.up = b.linear_module(m.ffn, "up_proj", s.width, s.ffn, s.bias);
  b.module(m.ffn, "act", "GELU");
  m.down = b.linear_module(m.ffn, "down_proj", s.ffn, s.width, s.bias);
  b.module(m.self, "resid_attn_dropout", "Dropout");
  return m;
}

std::int32_t run_block(GraphBuilder& b, const MptBlock& m, const MptShape& s, std::int64_t head_dim, std::int32_t x) {
  const auto qkv = b.linear(m.qkv, b.layer_norm(m.norm_1, x, s.eps));
  const auto mixed =
      b.attention(m.attention, {qkv}, {.heads = s.heads, .kv_heads = s.heads, .head_dim = head_dim, .alibi = s.alibi});
  x = b.add(m.self, x, b.linear(m.projection, mixed));
  const auto wide = b.linear(m.up, b.layer_norm(m.norm_2, x, s.eps));
  return b.add(m.ffn, x, b.linear(m.down, b.gelu(m.ffn, wide, false)));  // MptMLP adds the residual itself
}

}  // namespace

ModelGraph import_mpt(JsonObject& config, std::string_view where, std::int64_t seq_len) {
  const MptShape s = read(config, seq_len);
  const std::int64_t head_dim = split_heads(config, "d_model", s.width, s.heads);
  GraphBuilder b("mpt", "MptForCausalLM");
  const auto transformer = b.module(0, "transformer", "MptModel");
  const auto wte = b.embedding_module(transformer, "wte", s.vocab, s.width);
  const auto wpe = s.learned_positions ? b.embedding_module(transformer, "wpe", s.positions, s.width) : -1;
  const auto list = b.list(transformer, "blocks");
  std::vector<MptBlock> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(transformer, "norm_f", "LayerNorm", s.width, s.bias);
  const auto head = b.lm_head(wte, s.tied);

  auto x = b.embedding(wte, b.ids());
  if (s.learned_positions) x = b.position(wpe, x);
  for (const MptBlock& m : blocks) x = run_block(b, m, s, head_dim, x);
  return b.finish(b.linear(head, b.layer_norm(norm, x, s.eps)), s.vocab, s.positions, where);
}

}  // namespace fsdp
