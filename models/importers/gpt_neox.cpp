// GPT-NeoX and Pythia: LayerNorm, one matrix for q, k and v with the three of each head together, rotary positions of a
// part of each head, GELU, and usually attention and feed-forward side by side: x + attention(norm(x)) + mlp(norm'(x)).
#include "models/importers/builder.h"
#include "models/importers/decoder.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

struct NeoxShape {
  std::int64_t vocab, hidden, ffn, layers, heads, head_dim, rotated;
  std::optional<std::int64_t> positions;
  double eps, theta;
  bool bias, parallel, tied, fast_gelu;
};

NeoxShape read(JsonObject& config) {
  NeoxShape s{};
  s.vocab = config.integer("vocab_size", 1, kMaxVocab);
  s.hidden = config.integer("hidden_size", 1, kMaxWidth);
  s.ffn = config.integer("intermediate_size", 1, kMaxWidth);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  s.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  s.head_dim = split_heads(config, "hidden_size", s.hidden, s.heads);
  s.positions = config.optional_integer("max_position_embeddings", 1, kMaxPositions);
  s.eps = config.optional_number("layer_norm_eps", 1e-30, 1).value_or(1e-5);
  s.bias = config.optional_boolean("attention_bias").value_or(true);
  s.parallel = config.optional_boolean("use_parallel_residual").value_or(true);
  s.tied = config.optional_boolean("tie_word_embeddings").value_or(false);
  const std::string act = config.optional_text("hidden_act").value_or("gelu");
  s.fast_gelu = act == "gelu_fast";
  if (!s.fast_gelu) require_text(config, "hidden_act", "gelu");
  s.theta = rope_number(config, "rotary_emb_base", "rope_theta", 1e-3, 1e15).value_or(10000);
  s.rotated = rotated_channels(config, s.head_dim,
                               rope_number(config, "rotary_pct", "partial_rotary_factor", 1e-6, 1).value_or(0.25));
  return s;
}

struct NeoxBlock {
  std::int32_t self, input_norm, post_norm, attention, qkv, dense, mlp, up, down;
};

NeoxBlock add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const NeoxShape& s) {
  NeoxBlock m{};
  m.self = b.block(list, index, "GPTNeoXLayer");
  m.input_norm = b.norm_module(m.self, "input_layernorm", "LayerNorm", s.hidden, true);
  m.post_norm = b.norm_module(m.self, "post_attention_layernorm", "LayerNorm", s.hidden, true);
  b.module(m.self, "post_attention_dropout", "Dropout");
  b.module(m.self, "post_mlp_dropout", "Dropout");
  m.attention = b.module(m.self, "attention", "GPTNeoXAttention");
  m.qkv = b.linear_module(m.attention, "query_key_value", s.hidden, 3 * s.hidden, s.bias);
  m.dense = b.linear_module(m.attention, "dense", s.hidden, s.hidden, s.bias);
  m.mlp = b.module(m.self, "mlp", "GPTNeoXMLP");
  m.up = b.linear_module(m.mlp, "dense_h_to_4h", s.hidden, s.ffn, true);
  m.down = b.linear_module(m.mlp, "dense_4h_to_h", s.ffn, s.hidden, true);
  b.module(m.mlp, "act", s.fast_gelu ? "FastGELUActivation" : "GELUActivation");
  return m;
}

std::int32_t run_block(GraphBuilder& b, const NeoxBlock& m, const NeoxShape& s, std::int32_t x) {
  const auto qkv = b.linear(m.qkv, b.layer_norm(m.input_norm, x, s.eps));
  const auto turned = b.rotary(m.attention, qkv,
                               {.heads = s.heads,
                                .kv_heads = s.heads,
                                .head_dim = s.head_dim,
                                .packed = true,
                                .theta = s.theta,
                                .rotated = s.rotated,
                                .interleaved = true});
  const auto mixed = b.attention(m.attention, {turned, qkv},
                                 {.heads = s.heads, .kv_heads = s.heads, .head_dim = s.head_dim, .interleaved = true});
  const auto attention = b.linear(m.dense, mixed);
  const auto mlp = [&](std::int32_t in) {
    return b.linear(m.down,
                    b.gelu(m.mlp, b.linear(m.up, b.layer_norm(m.post_norm, in, s.eps)), s.fast_gelu, s.fast_gelu));
  };
  if (s.parallel) {
    const auto sum = b.add(m.self, mlp(x), attention);
    return b.add(m.self, sum, x);
  }
  x = b.add(m.self, attention, x);
  return b.add(m.self, mlp(x), x);
}

}  // namespace

ModelGraph import_gpt_neox(JsonObject& config, std::string_view where, std::int64_t /*seq_len*/) {
  const NeoxShape s = read(config);
  GraphBuilder b("gpt_neox", "GPTNeoXForCausalLM");
  const auto model = b.module(0, "gpt_neox", "GPTNeoXModel");
  const auto embed = b.embedding_module(model, "embed_in", s.vocab, s.hidden);
  b.module(model, "emb_dropout", "Dropout");
  const auto list = b.list(model, "layers");
  std::vector<NeoxBlock> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "final_layer_norm", "LayerNorm", s.hidden, true);
  b.module(model, "rotary_emb", "GPTNeoXRotaryEmbedding");
  const auto head = b.lm_head(embed, s.tied);

  auto x = b.embedding(embed, b.ids());
  for (const NeoxBlock& m : blocks) x = run_block(b, m, s, x);
  return b.finish(b.linear(head, b.layer_norm(norm, x, s.eps)), s.vocab, s.positions, where);
}

}  // namespace fsdp
