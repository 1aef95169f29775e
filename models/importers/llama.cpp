// Llama and its near relatives, as transformers builds them: pre-norm decoder with RMSNorm, rotary positions,
// grouped-query attention and SwiGLU, of one feed-forward or of experts. What differs is a row of `kVariants`.
// Frequency scaling of rotary positions (Llama 3.1's "llama3", "yarn", ...) changes angles, not work or sizes, and is
// not modelled: our executor rotates with the plain theta.
#include <fmt/format.h>

#include <array>
#include <optional>

#include "models/importers/builder.h"
#include "models/importers/experts.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

enum class QkvBias { from_config, always, never };
enum class QkNorm { none, each_head, all_heads };
struct Variant {
  std::string_view model_type, prefix;  // class names start with the prefix
  QkvBias qkv_bias;
  bool output_bias_from_config, mlp_bias_from_config;
  QkNorm qk_norm;
  std::optional<ExpertVariant> experts = std::nullopt;
  double eps = 1e-6, theta = 10000.0;  // where the config says nothing
};
constexpr std::array kVariants{
    Variant{"llama", "Llama", QkvBias::from_config, true, true, QkNorm::none},
    Variant{"mistral", "Mistral", QkvBias::never, false, false, QkNorm::none},
    Variant{"qwen2", "Qwen2", QkvBias::always, false, false, QkNorm::none},
    Variant{"qwen3", "Qwen3", QkvBias::from_config, true, false, QkNorm::each_head},
    Variant{"mixtral", "Mixtral", QkvBias::never, false, false, QkNorm::none,
            ExpertVariant{"num_local_experts", "intermediate_size", true, true}, 1e-5, 1e6},
    Variant{"qwen3_moe", "Qwen3Moe", QkvBias::from_config, true, false, QkNorm::each_head,
            ExpertVariant{"num_experts", "moe_intermediate_size", false, false}},
    Variant{"olmoe", "Olmoe", QkvBias::from_config, true, false, QkNorm::all_heads,
            ExpertVariant{"num_experts", "intermediate_size", true, false}, 1e-5},
};

struct LlamaShape {
  const Variant* variant;
  std::int64_t vocab, hidden, ffn, layers, heads, kv_heads, head_dim;
  std::optional<std::int64_t> positions;
  ExpertShape experts;  // where the variant has some, `ffn` is theirs
  double eps, theta;
  bool qkv_bias, output_bias, mlp_bias, tied;
  std::vector<std::int64_t> window;  // per layer, 0: none
};

// transformers < 5 writes rope_theta at the top, transformers 5 inside rope_parameters (rope_scaling in files between).
double rope_theta(JsonObject& config, const Variant& v) {
  if (const auto theta = config.optional_number("rope_theta", 1e-3, 1e15)) return *theta;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (auto rope = config.optional_object(key)) {
      if (const auto theta = rope->optional_number("rope_theta", 1e-3, 1e15)) return *theta;
    }
  }
  return v.theta;
}

// Mistral: one window for all layers (absent: 4096, its config class's default), Mixtral the same (absent: none). Qwen:
// only with use_sliding_window, and then from layer max_window_layers on. A list of layer types decides where it
// exists.
std::vector<std::int64_t> windows(JsonObject& config, const Variant& v, std::int64_t layers) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(layers), 0);
  const bool qwen = v.model_type.starts_with("qwen"), mixtral = v.model_type == "mixtral";
  if (!qwen && !mixtral && v.model_type != "mistral") return out;
  if (qwen && v.experts) require_boolean(config, "use_sliding_window", false);
  const auto stated = config.optional_integer("sliding_window", 1, kMaxPositions);
  const std::int64_t window = stated ? *stated : !config.has("sliding_window") && !mixtral ? 4096 : 0;
  if (qwen && !config.optional_boolean("use_sliding_window").value_or(false)) return out;
  const std::int64_t first = qwen ? config.optional_integer("max_window_layers", 0, kMaxLayers).value_or(28) : 0;
  for (std::int64_t i = first; i < layers; ++i) out[static_cast<std::size_t>(i)] = window;
  const auto types = config.find("layer_types");
  if (!types) return out;
  const std::vector<std::string> names = types->texts();
  if (names.size() != out.size())
    types->refuse(fmt::format("lists {} layers of {}", names.size(), layers), "list every layer");
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (names[i] != "full_attention" && names[i] != "sliding_attention")
      types->refuse("knows no \"" + names[i] + "\"", "only full_attention and sliding_attention are modelled");
    out[i] = names[i] == "sliding_attention" ? window : 0;
  }
  return out;
}

const Variant& variant_of(JsonObject& config) {
  const std::string type = config.text("model_type");
  for (const Variant& v : kVariants) {
    if (v.model_type == type) return v;
  }
  return kVariants[0];  // not reached: the caller dispatches on model_type
}

LlamaShape read(JsonObject& config) {
  const Variant& v = variant_of(config);
  LlamaShape s{};
  s.variant = &v;
  s.vocab = config.integer("vocab_size", 1, kMaxVocab);
  s.hidden = config.integer("hidden_size", 1, kMaxWidth);
  if (v.experts) s.experts = read_experts(config, *v.experts, s.hidden);
  s.ffn = v.experts ? s.experts.ffn : config.integer("intermediate_size", 1, kMaxWidth);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  s.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  s.kv_heads = config.optional_integer("num_key_value_heads", 1, kMaxHeads).value_or(s.heads);
  if (s.heads % s.kv_heads != 0)
    config.refuse("num_key_value_heads", fmt::format("{} does not divide {} heads", s.kv_heads, s.heads),
                  "use a divisor");
  const auto head_dim = config.optional_integer("head_dim", 1, kMaxHeads);
  // Qwen3's config class defaults to 128, the others derive it.
  s.head_dim = head_dim                  ? *head_dim
               : v.model_type == "qwen3" ? 128
                                         : split_heads(config, "hidden_size", s.hidden, s.heads);
  if (s.head_dim % 2 != 0)
    config.refuse("head_dim", fmt::format("{} is odd", s.head_dim), "rotary positions need an even one");
  s.positions = config.optional_integer("max_position_embeddings", 1, kMaxPositions);
  s.eps = config.optional_number("rms_norm_eps", 1e-30, 1).value_or(v.eps);
  s.theta = rope_theta(config, v);
  require_text(config, "hidden_act", "silu");
  const bool attention_bias = config.optional_boolean("attention_bias").value_or(false);
  s.qkv_bias = v.qkv_bias == QkvBias::always || (v.qkv_bias == QkvBias::from_config && attention_bias);
  s.output_bias = v.output_bias_from_config && attention_bias;
  s.mlp_bias = v.mlp_bias_from_config && config.optional_boolean("mlp_bias").value_or(false);
  s.tied = config.optional_boolean("tie_word_embeddings").value_or(false);
  s.window = windows(config, v, s.layers);
  return s;
}

struct LlamaBlock {
  std::int32_t self, attention, q, k, v, o, q_norm, k_norm, mlp, gate, up, down, input_norm, post_norm;
  ExpertModules experts;
};

LlamaBlock add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const LlamaShape& s) {
  const std::string prefix(s.variant->prefix), norm = prefix + "RMSNorm";
  LlamaBlock m{};
  m.self = b.block(list, index, prefix + "DecoderLayer");
  m.attention = b.module(m.self, "self_attn", prefix + "Attention");
  m.q = b.linear_module(m.attention, "q_proj", s.hidden, s.heads * s.head_dim, s.qkv_bias);
  m.k = b.linear_module(m.attention, "k_proj", s.hidden, s.kv_heads * s.head_dim, s.qkv_bias);
  m.v = b.linear_module(m.attention, "v_proj", s.hidden, s.kv_heads * s.head_dim, s.qkv_bias);
  m.o = b.linear_module(m.attention, "o_proj", s.heads * s.head_dim, s.hidden, s.output_bias);
  if (s.variant->qk_norm != QkNorm::none) {
    const bool each = s.variant->qk_norm == QkNorm::each_head;
    m.q_norm = b.norm_module(m.attention, "q_norm", norm, each ? s.head_dim : s.heads * s.head_dim, false);
    m.k_norm = b.norm_module(m.attention, "k_norm", norm, each ? s.head_dim : s.kv_heads * s.head_dim, false);
  }
  m.mlp = b.module(m.self, "mlp", prefix + (s.variant->experts ? "SparseMoeBlock" : "MLP"));
  if (s.variant->experts) {
    m.experts = add_experts(b, m.mlp, prefix, *s.variant->experts, s.experts);
  } else {
    m.gate = b.linear_module(m.mlp, "gate_proj", s.hidden, s.ffn, s.mlp_bias);
    m.up = b.linear_module(m.mlp, "up_proj", s.hidden, s.ffn, s.mlp_bias);
    m.down = b.linear_module(m.mlp, "down_proj", s.ffn, s.hidden, s.mlp_bias);
    b.module(m.mlp, "act_fn", "SiLUActivation");
  }
  m.input_norm = b.norm_module(m.self, "input_layernorm", norm, s.hidden, false);
  m.post_norm = b.norm_module(m.self, "post_attention_layernorm", norm, s.hidden, false);
  return m;
}

std::int32_t run_block(GraphBuilder& b, const LlamaBlock& m, const LlamaShape& s, std::int64_t window, std::int32_t x) {
  const auto normed = b.rms_norm(m.input_norm, x, 1, s.eps);
  const bool each = s.variant->qk_norm == QkNorm::each_head, norms = s.variant->qk_norm != QkNorm::none;
  auto q = b.linear(m.q, normed);
  if (norms) q = b.rms_norm(m.q_norm, q, each ? s.heads : 1, s.eps);
  auto k = b.linear(m.k, normed);
  if (norms) k = b.rms_norm(m.k_norm, k, each ? s.kv_heads : 1, s.eps);
  const auto v = b.linear(m.v, normed);
  q = b.rotary(m.attention, q, s.heads, s.head_dim, s.theta);
  k = b.rotary(m.attention, k, s.kv_heads, s.head_dim, s.theta);
  const auto mixed = b.attention(m.attention, {q, k, v},
                                 {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .window = window});
  x = b.add(m.self, x, b.linear(m.o, mixed));
  const auto wide = b.rms_norm(m.post_norm, x, 1, s.eps);
  if (s.variant->experts) return b.add(m.self, x, run_experts(b, m.experts, s.experts, wide));
  const auto gate = b.linear(m.gate, wide);
  const auto up = b.linear(m.up, wide);
  return b.add(m.self, x, b.linear(m.down, b.swiglu(m.mlp, gate, up)));
}

}  // namespace

ModelGraph import_llama(JsonObject& config, std::string_view where,
                        std::int64_t /*seq_len: rotary positions have no size*/) {
  const LlamaShape s = read(config);
  const std::string prefix(s.variant->prefix);
  GraphBuilder b(s.variant->model_type, prefix + "ForCausalLM");
  const auto model = b.module(0, "model", prefix + "Model");
  const auto embed = b.embedding_module(model, "embed_tokens", s.vocab, s.hidden);
  const auto list = b.list(model, "layers");
  std::vector<LlamaBlock> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "norm", prefix + "RMSNorm", s.hidden, false);
  b.module(model, "rotary_emb", prefix + "RotaryEmbedding");
  const auto head =
      s.tied ? b.tied_linear_module(0, "lm_head", embed) : b.linear_module(0, "lm_head", s.hidden, s.vocab, false);

  auto x = b.embedding(embed, b.ids());
  for (std::size_t i = 0; i < blocks.size(); ++i) x = run_block(b, blocks[i], s, s.window[i], x);
  return b.finish(b.linear(head, b.rms_norm(norm, x, 1, s.eps)), s.vocab, s.positions, where);
}

}  // namespace fsdp
