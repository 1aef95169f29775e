// GPT-2 as transformers builds it: pre-LayerNorm decoder, learned positions, fused query-key-value projection, Conv1D
// layers (linear layers whose weight is stored [in, out]), output head tied to the embedding. Dropout is not modelled.
#include <fmt/format.h>

#include "models/importers/builder.h"
#include "models/importers/importers.h"
#include "models/input/suggest.h"

namespace fsdp {
namespace {

// gelu_new and gelu_pytorch_tanh are the tanh approximation, gelu the exact one. Also their class names in
// transformers.
struct Activation {
  bool tanh;
  std::string_view class_name;
};

Activation activation(JsonObject& config) {
  const std::string text = config.optional_text("activation_function").value_or("gelu_new");
  if (text == "gelu_new") return {true, "NewGELUActivation"};
  if (text == "gelu_pytorch_tanh") return {true, "GELUTanh"};
  if (text == "gelu") return {false, "GELUActivation"};
  config.refuse("activation_function", "\"" + printable(text) + "\" is not modelled",
                "only gelu_new, gelu_pytorch_tanh and gelu are");
}

struct Gpt2Shape {
  std::int64_t vocab, positions, width, layers, heads, ffn;
  double eps;
  Activation act;
  bool tied;
};

Gpt2Shape read(JsonObject& config) {
  Gpt2Shape s{};
  s.vocab = config.integer("vocab_size", 1, kMaxVocab);
  s.positions = config.integer("n_positions", 1, kMaxPositions);
  s.width = config.integer("n_embd", 1, kMaxWidth);
  s.layers = config.integer("n_layer", 1, kMaxLayers);
  s.heads = config.integer("n_head", 1, kMaxHeads);
  s.ffn = config.optional_integer("n_inner", 1, kMaxWidth).value_or(4 * s.width);
  s.eps = config.optional_number("layer_norm_epsilon", 1e-30, 1).value_or(1e-5);
  s.act = activation(config);
  s.tied = config.optional_boolean("tie_word_embeddings").value_or(true);
  require_boolean(config, "add_cross_attention", false);
  require_boolean(config, "scale_attn_by_inverse_layer_idx", false);
  require_boolean(config, "scale_attn_weights", true);
  return s;
}

struct Gpt2Block {
  std::int32_t self, ln_1, attention, qkv, projection, ln_2, mlp, up, down;
};

Gpt2Block add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const Gpt2Shape& s) {
  Gpt2Block m{};
  m.self = b.block(list, index, "GPT2Block");
  m.ln_1 = b.norm_module(m.self, "ln_1", "LayerNorm", s.width, true);
  m.attention = b.module(m.self, "attn", "GPT2Attention");
  m.qkv = b.conv1d_module(m.attention, "c_attn", s.width, 3 * s.width);
  m.projection = b.conv1d_module(m.attention, "c_proj", s.width, s.width);
  b.module(m.attention, "attn_dropout", "Dropout");
  b.module(m.attention, "resid_dropout", "Dropout");
  m.ln_2 = b.norm_module(m.self, "ln_2", "LayerNorm", s.width, true);
  m.mlp = b.module(m.self, "mlp", "GPT2MLP");
  m.up = b.conv1d_module(m.mlp, "c_fc", s.width, s.ffn);
  m.down = b.conv1d_module(m.mlp, "c_proj", s.ffn, s.width);
  b.module(m.mlp, "act", s.act.class_name);
  b.module(m.mlp, "dropout", "Dropout");
  return m;
}

std::int32_t run_block(GraphBuilder& b, const Gpt2Block& m, const Gpt2Shape& s, std::int64_t head_dim, std::int32_t x) {
  const auto qkv = b.linear(m.qkv, b.layer_norm(m.ln_1, x, s.eps));
  const auto mixed = b.attention(m.attention, {qkv}, {.heads = s.heads, .kv_heads = s.heads, .head_dim = head_dim});
  x = b.add(m.self, x, b.linear(m.projection, mixed));
  const auto wide = b.linear(m.up, b.layer_norm(m.ln_2, x, s.eps));
  return b.add(m.self, x, b.linear(m.down, b.gelu(m.mlp, wide, s.act.tanh)));
}

}  // namespace

ModelGraph import_gpt2(JsonObject& config, std::string_view where,
                       std::int64_t /*seq_len: n_positions rows whatever the run uses*/) {
  const Gpt2Shape s = read(config);
  const std::int64_t head_dim = split_heads(config, "n_embd", s.width, s.heads);
  GraphBuilder b("gpt2", "GPT2LMHeadModel");
  const auto transformer = b.module(0, "transformer", "GPT2Model");
  const auto wte = b.embedding_module(transformer, "wte", s.vocab, s.width);
  const auto wpe = b.embedding_module(transformer, "wpe", s.positions, s.width);
  b.module(transformer, "drop", "Dropout");
  const auto list = b.list(transformer, "h");
  std::vector<Gpt2Block> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(transformer, "ln_f", "LayerNorm", s.width, true);
  const auto head = b.lm_head(wte, s.tied);

  auto x = b.position(wpe, b.embedding(wte, b.ids()));
  for (const Gpt2Block& m : blocks) x = run_block(b, m, s, head_dim, x);
  return b.finish(b.linear(head, b.layer_norm(norm, x, s.eps)), s.vocab, s.positions, where);
}

}  // namespace fsdp
