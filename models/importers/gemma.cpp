// Gemma 2 and the text models of Gemma 3: Llama's decoder with scaled embeddings, norms before and after each branch
// (RMSNorm in fp32, by one plus its weight), GeGLU, and windows in most layers. Gemma 2 caps scores and logits; Gemma 3
// normalises q and k, and turns windowed layers by another theta.
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "models/importers/builder.h"
#include "models/importers/decoder.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

constexpr OpShape kNorm{.weight_offset = 1, .wide_weight = true};

struct GemmaShape : DecoderShape {
  std::string prefix;  // of class names
  bool qk_norm = false, bias = false;
  double score_factor = 0, score_cap = 0, logit_cap = 0, local_theta = 0;
  std::vector<std::int64_t> window;  // per layer, 0: none
};

// Every `period`-th layer has no window.
std::vector<std::int64_t> windows(JsonObject& config, std::int64_t layers, std::int64_t period) {
  const std::int64_t window =
      config.has("sliding_window") ? config.optional_integer("sliding_window", 1, kMaxPositions).value_or(0) : 4096;
  std::vector<std::int64_t> out(static_cast<std::size_t>(layers), window);
  for (std::int64_t i = period - 1; i < layers; i += period) out[static_cast<std::size_t>(i)] = 0;
  return windows_by_type(config, window, std::move(out));
}

// One theta for each kind of layer: at the top (rope_theta, rope_local_base_freq) or in rope_parameters.
void read_thetas(JsonObject& config, GemmaShape& s) {
  s.theta = config.optional_number("rope_theta", 1e-3, 1e15).value_or(1e6);
  s.local_theta = config.optional_number("rope_local_base_freq", 1e-3, 1e15).value_or(1e4);
  auto rope = config.optional_object("rope_parameters");
  if (!rope) return;
  for (const auto& [key, theta] : {std::pair{"full_attention", &s.theta}, {"sliding_attention", &s.local_theta}})
    if (auto of_type = rope->optional_object(key))
      *theta = of_type->optional_number("rope_theta", 1e-3, 1e15).value_or(*theta);
}

GemmaShape read(JsonObject& config, bool third) {
  GemmaShape s;
  const DecoderDefaults defaults{.vocab = third ? 262208 : 256000,
                                 .heads = 8,
                                 .kv_heads = 4,
                                 .head_dim = 256,
                                 .positions = third ? 131072 : 8192,
                                 .tied = true};
  static_cast<DecoderShape&>(s) = read_decoder(config, defaults, "intermediate_size");
  s.prefix = third ? "Gemma3" : "Gemma2";
  s.qk_norm = third;
  require_text(config, "hidden_activation", "gelu_pytorch_tanh");
  require_boolean(config, "use_bidirectional_attention", false);
  s.bias = config.optional_boolean("attention_bias").value_or(false);
  s.score_factor = 1 / std::sqrt(config.optional_number("query_pre_attn_scalar", 1e-6, 1e9).value_or(256));
  const auto cap = [&](std::string_view key, double otherwise) {
    return config.has(key) ? config.optional_number(key, 1e-6, 1e9).value_or(0) : third ? 0 : otherwise;
  };
  s.score_cap = cap("attn_logit_softcapping", 50);
  s.logit_cap = cap("final_logit_softcapping", 30);
  if (third) {  // its config class has a cap of scores, its model does not use it
    require_absent(config, "attn_logit_softcapping");
    read_thetas(config, s);
  } else {
    s.local_theta = s.theta;
  }
  const std::int64_t period = third ? config.optional_integer("sliding_window_pattern", 1, kMaxLayers).value_or(6) : 2;
  s.window = windows(config, s.layers, period);
  return s;
}

struct GemmaBlock {
  std::int32_t self, attention, q, k, v, o, q_norm, k_norm, mlp, gate, up, down;
  std::array<std::int32_t, 4> norms;  // before and after attention, before and after the feed-forward
};

GemmaBlock add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const GemmaShape& s) {
  const std::string norm = s.prefix + "RMSNorm";
  GemmaBlock m{};
  m.self = b.block(list, index, s.prefix + "DecoderLayer");
  m.attention = b.module(m.self, "self_attn", s.prefix + "Attention");
  m.q = b.linear_module(m.attention, "q_proj", s.hidden, s.heads * s.head_dim, s.bias);
  m.k = b.linear_module(m.attention, "k_proj", s.hidden, s.kv_heads * s.head_dim, s.bias);
  m.v = b.linear_module(m.attention, "v_proj", s.hidden, s.kv_heads * s.head_dim, s.bias);
  m.o = b.linear_module(m.attention, "o_proj", s.heads * s.head_dim, s.hidden, s.bias);
  if (s.qk_norm) {
    m.q_norm = b.norm_module(m.attention, "q_norm", norm, s.head_dim, false);
    m.k_norm = b.norm_module(m.attention, "k_norm", norm, s.head_dim, false);
  }
  m.mlp = b.module(m.self, "mlp", s.prefix + "MLP");
  m.gate = b.linear_module(m.mlp, "gate_proj", s.hidden, s.ffn, false);
  m.up = b.linear_module(m.mlp, "up_proj", s.hidden, s.ffn, false);
  m.down = b.linear_module(m.mlp, "down_proj", s.ffn, s.hidden, false);
  b.module(m.mlp, "act_fn", "GELUTanh");
  std::size_t i = 0;
  for (const char* name :
       {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"})
    m.norms[i++] = b.norm_module(m.self, name, norm, s.hidden, false);
  return m;
}

std::int32_t run_block(GraphBuilder& b, const GemmaBlock& m, const GemmaShape& s, std::int64_t window, std::int32_t x) {
  const double theta = window > 0 ? s.local_theta : s.theta;
  const auto normed = b.rms_norm(m.norms[0], x, 1, s.eps, kNorm);
  auto q = b.linear(m.q, normed), k = b.linear(m.k, normed);
  const auto v = b.linear(m.v, normed);
  if (s.qk_norm) {
    q = b.rms_norm(m.q_norm, q, s.heads, s.eps, kNorm);
    k = b.rms_norm(m.k_norm, k, s.kv_heads, s.eps, kNorm);
  }
  q = b.rotary(m.attention, q, {.heads = s.heads, .head_dim = s.head_dim, .theta = theta});
  k = b.rotary(m.attention, k, {.heads = s.kv_heads, .head_dim = s.head_dim, .theta = theta});
  const auto mixed = b.attention(m.attention, {q, k, v},
                                 {.heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .head_dim = s.head_dim,
                                  .window = window,
                                  .cap = s.score_cap,
                                  .score_factor = s.score_factor});
  x = b.add(m.self, x, b.rms_norm(m.norms[1], b.linear(m.o, mixed), 1, s.eps, kNorm));
  const auto wide = b.rms_norm(m.norms[2], x, 1, s.eps, kNorm);
  const auto gate = b.linear(m.gate, wide), up = b.linear(m.up, wide);
  const auto made = b.linear(m.down, b.geglu(m.mlp, gate, up));
  return b.add(m.self, x, b.rms_norm(m.norms[3], made, 1, s.eps, kNorm));
}

ModelGraph import(JsonObject& config, std::string_view where, bool third) {
  const GemmaShape s = read(config, third);
  GraphBuilder b(third ? "gemma3_text" : "gemma2", s.prefix + "ForCausalLM");
  const auto model = b.module(0, "model", s.prefix + (third ? "TextModel" : "Model"));
  const auto embed = b.embedding_module(model, "embed_tokens", s.vocab, s.hidden, s.prefix + "TextScaledWordEmbedding");
  const auto list = b.list(model, "layers");
  std::vector<GemmaBlock> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "norm", s.prefix + "RMSNorm", s.hidden, false);
  b.module(model, "rotary_emb", s.prefix + "RotaryEmbedding");
  const auto head = b.lm_head(embed, s.tied);

  auto x = b.scale(embed, b.embedding(embed, b.ids()), std::sqrt(static_cast<double>(s.hidden)));
  for (std::size_t i = 0; i < blocks.size(); ++i) x = run_block(b, blocks[i], s, s.window[i], x);
  auto logits = b.linear(head, b.rms_norm(norm, x, 1, s.eps, kNorm));
  if (s.logit_cap > 0) logits = b.soft_cap(0, logits, s.logit_cap);
  return b.finish(logits, s.vocab, s.positions, where);
}

}  // namespace

ModelGraph import_gemma2(JsonObject& config, std::string_view where, std::int64_t /*seq_len*/) {
  return import(config, where, false);
}
ModelGraph import_gemma3(JsonObject& config, std::string_view where, std::int64_t /*seq_len*/) {
  return import(config, where, true);
}

}  // namespace fsdp
