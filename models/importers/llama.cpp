// Llama and its near relatives, as transformers builds them: pre-norm decoder with RMSNorm, rotary positions,
// grouped-query or latent attention and SwiGLU, of one feed-forward or of experts. What differs is a row of
// `kVariants`. Frequency scaling of rotary positions (Llama 3.1's "llama3", "yarn", ...) changes angles, not work or
// sizes, and is not modelled: our executor rotates with the plain theta.
#include <array>
#include <optional>
#include <tuple>
#include <utility>

#include "models/importers/builder.h"
#include "models/importers/decoder.h"
#include "models/importers/experts.h"
#include "models/importers/importers.h"
#include "models/importers/latent.h"

namespace fsdp {
namespace {

enum class QkvBias { from_config, always, never };
enum class QkNorm { none, each_head, all_heads, each_head_from_config };
struct Variant {
  std::string_view model_type, prefix;  // class names start with the prefix
  QkvBias qkv_bias;
  bool output_bias_from_config, mlp_bias_from_config;
  QkNorm qk_norm;
  std::optional<ExpertVariant> experts = std::nullopt;
  DecoderDefaults defaults = {};
  bool norms_after = false;  // of what attention and the feed-forward make; norms and rotary are in fp32
  bool multiplied = false;   // as Multipliers says
  double rotated = 1;        // share of each head's channels that turns, where the config says none
  bool latent = false;       // its attention is (latent.h)
  std::string_view experts_class = "SparseMoeBlock";
};
constexpr DecoderDefaults kMistral{.kv_heads = 8}, kMixtral{.eps = 1e-5, .theta = 1e6, .kv_heads = 8},
    kQwen2{.kv_heads = 32}, kQwen25Vl{.eps = 1e-5, .theta = 1e6, .kv_heads = 8},
    kQwen3{.kv_heads = 32, .head_dim = 128}, kQwen3Moe{.kv_heads = 4}, kOlmo{.eps = 1e-5},
    kGlm4Moe{.eps = 1e-5, .vocab = 151'552, .heads = 96, .kv_heads = 8},
    kDeepSeekV2{.vocab = 102'400, .heads = 32, .head_dim = 64, .positions = 2048},  // of what turns
    kDeepSeekV3{.vocab = 129'280, .heads = 128, .head_dim = 64};
constexpr std::array kVariants{
    Variant{"llama", "Llama", QkvBias::from_config, true, true, QkNorm::none},
    Variant{"mistral", "Mistral", QkvBias::never, false, false, QkNorm::none, std::nullopt, kMistral},
    Variant{"qwen2", "Qwen2", QkvBias::always, false, false, QkNorm::none, std::nullopt, kQwen2},
    Variant{"qwen2_5_vl_text", "Qwen2_5_VL", QkvBias::always, false, false, QkNorm::none, std::nullopt, kQwen25Vl},
    Variant{"qwen3", "Qwen3", QkvBias::from_config, true, false, QkNorm::each_head, std::nullopt, kQwen3},
    Variant{"mixtral", "Mixtral", QkvBias::never, false, false, QkNorm::none,
            ExpertVariant{"num_local_experts", "intermediate_size", true, true, true}, kMixtral},
    Variant{"qwen3_moe", "Qwen3Moe", QkvBias::from_config, true, false, QkNorm::each_head,
            ExpertVariant{"num_experts", "moe_intermediate_size", false, false}, kQwen3Moe},
    Variant{"olmoe", "Olmoe", QkvBias::from_config, true, false, QkNorm::all_heads,
            ExpertVariant{"num_experts", "intermediate_size", true, false}, kOlmo},
    Variant{"olmo2", "Olmo2", QkvBias::from_config, true, false, QkNorm::all_heads, std::nullopt, kOlmo, true},
    Variant{"glm4_moe", "Glm4Moe", QkvBias::from_config, false, false, QkNorm::each_head_from_config,
            ExpertVariant{"n_routed_experts", "moe_intermediate_size", false, false, true, true, {.dense_layers = 1}},
            kGlm4Moe, false, false, 0.5, false, "MoE"},
    Variant{"deepseek_v2", "DeepseekV2", QkvBias::never, false, false, QkNorm::none,
            ExpertVariant{
                "n_routed_experts", "moe_intermediate_size", false, false, true, true, {.shared_experts = 2}, true},
            kDeepSeekV2, false, false, 1, true, "Moe"},
    Variant{"deepseek_v3", "DeepseekV3", QkvBias::never, false, false, QkNorm::none,
            ExpertVariant{"n_routed_experts", "moe_intermediate_size", false, false, true, true, {3, 8, 4, 2.5}},
            kDeepSeekV3, false, false, 1, true, "MoE"},
    Variant{"granite", "Granite", QkvBias::from_config, true, true, QkNorm::none, std::nullopt, {}, false, true},
};

// Granite's factors: of the embeddings, of what a branch adds, of the scores (instead of 1 / sqrt(head_dim)), of the
// logits.
struct Multipliers {
  double embedding = 1, residual = 1, scores = 0, logits = 1;
};

struct LlamaShape : DecoderShape {
  const Variant* variant = nullptr;
  ExpertShape experts;
  QkNorm qk_norm = QkNorm::none;
  std::int64_t rotated = 0;  // OpShape's
  LatentShape latent;
  Multipliers times;
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  std::vector<std::int64_t> window;  // per layer, 0: none
};

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
  return windows_by_type(config, window, std::move(out));
}

Multipliers read_multipliers(JsonObject& config) {
  const auto read = [&](std::string_view key) { return config.optional_number(key, 1e-9, 1e9).value_or(1.0); };
  return {read("embedding_multiplier"), read("residual_multiplier"), read("attention_multiplier"),
          1 / read("logits_scaling")};
}

const Variant& variant_of(JsonObject& config) {
  const std::string type = config.optional_text("model_type").value_or("llama");  // as the catalog dispatches
  for (const Variant& v : kVariants) {
    if (v.model_type == type) return v;
  }
  return kVariants[0];  // not reached: the caller dispatches on model_type
}

LlamaShape read(JsonObject& config) {
  const Variant& v = variant_of(config);
  LlamaShape s;
  // Where all layers are of experts only they have a width.
  const bool dense = !v.experts || v.experts->shared;
  static_cast<DecoderShape&>(s) = read_decoder(config, v.defaults, dense ? "intermediate_size" : v.experts->width_key);
  s.variant = &v;
  s.qk_norm = v.qk_norm;
  if (v.qk_norm == QkNorm::each_head_from_config)
    s.qk_norm = config.optional_boolean("use_qk_norm").value_or(false) ? QkNorm::each_head : QkNorm::none;
  if (v.rotated != 1) {
    s.rotated = rotated_channels(
        config, s.head_dim,
        rope_number(config, "partial_rotary_factor", "partial_rotary_factor", 1e-6, 1).value_or(v.rotated));
    if (s.rotated == 0) s.rotated = s.head_dim;  // joined with a rest of no channels
  }
  if (v.experts) s.experts = read_experts(config, *v.experts, s.hidden);
  if (v.latent) s.latent = read_latent(config, s.hidden, s.heads, s.kv_heads, s.theta);
  if (v.model_type == "deepseek_v2") {
    require_boolean(config, "mlp_bias", false);
    require_no_attention_dropout(config);
    s.latent.wide_angles = true;
  }
  if (v.multiplied) s.times = read_multipliers(config);
  require_text(config, "hidden_act", "silu");
  const bool attention_bias = config.optional_boolean("attention_bias").value_or(false);
  s.qkv_bias = v.qkv_bias == QkvBias::always || (v.qkv_bias == QkvBias::from_config && attention_bias);
  s.output_bias = v.output_bias_from_config && attention_bias;
  s.mlp_bias = v.mlp_bias_from_config && config.optional_boolean("mlp_bias").value_or(false);
  s.window = windows(config, v, s.layers);
  return s;
}

struct LlamaBlock {
  std::int32_t self, attention, q, k, v, o, q_norm, k_norm, input_norm, post_norm, last_norm;
  LatentModules latent;
  GatedModules mlp;
  ExpertModules experts;
  bool of_experts = false;
};

// Projections of attention, whose heads stand apart.
void add_heads(GraphBuilder& b, LlamaBlock& m, const LlamaShape& s) {
  const std::string norm = std::string(s.variant->prefix) + "RMSNorm";
  m.q = b.linear_module(m.attention, "q_proj", s.hidden, s.heads * s.head_dim, s.qkv_bias);
  m.k = b.linear_module(m.attention, "k_proj", s.hidden, s.kv_heads * s.head_dim, s.qkv_bias);
  m.v = b.linear_module(m.attention, "v_proj", s.hidden, s.kv_heads * s.head_dim, s.qkv_bias);
  m.o = b.linear_module(m.attention, "o_proj", s.heads * s.head_dim, s.hidden, s.output_bias);
  if (s.qk_norm != QkNorm::none) {
    const bool each = s.qk_norm == QkNorm::each_head;
    m.q_norm = b.norm_module(m.attention, "q_norm", norm, each ? s.head_dim : s.heads * s.head_dim, false);
    m.k_norm = b.norm_module(m.attention, "k_norm", norm, each ? s.head_dim : s.kv_heads * s.head_dim, false);
  }
}

LlamaBlock add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const LlamaShape& s) {
  const std::string prefix(s.variant->prefix), norm = prefix + "RMSNorm";
  LlamaBlock m{};
  m.self = b.block(list, index, prefix + "DecoderLayer");
  m.attention = b.module(m.self, "self_attn", prefix + "Attention");
  if (s.variant->latent) m.latent = add_latent(b, m.attention, prefix, s.latent);
  else add_heads(b, m, s);
  m.of_experts = s.variant->experts && index >= s.experts.dense_layers;
  if (m.of_experts) {
    const auto mlp = b.module(m.self, "mlp", prefix + std::string(s.variant->experts_class));
    m.experts = add_experts(b, mlp, prefix, *s.variant->experts, s.experts);
  } else {
    const bool of_qwen2 = s.variant->model_type == "qwen2_5_vl_text";  // whose feed-forward it takes
    const auto mlp = b.module(m.self, "mlp", (of_qwen2 ? std::string("Qwen2") : prefix) + "MLP");
    m.mlp = add_gated(b, mlp, s.hidden, s.ffn, s.mlp_bias);
  }
  if (!s.variant->norms_after) m.input_norm = b.norm_module(m.self, "input_layernorm", norm, s.hidden, false);
  m.post_norm = b.norm_module(m.self, "post_attention_layernorm", norm, s.hidden, false);
  if (s.variant->norms_after) m.last_norm = b.norm_module(m.self, "post_feedforward_layernorm", norm, s.hidden, false);
  return m;
}

std::int32_t run_attention(GraphBuilder& b, const LlamaBlock& m, const LlamaShape& s, std::int64_t window,
                           std::int32_t x) {
  if (s.variant->latent) return run_latent(b, m.latent, s.latent, x);
  const bool each = s.qk_norm == QkNorm::each_head, norms = s.qk_norm != QkNorm::none;
  const bool wide = s.variant->norms_after;
  const auto q_normed = [&](std::int32_t q) {
    return norms ? b.rms_norm(m.q_norm, q, each ? s.heads : 1, s.eps, {.wide_weight = wide}) : q;
  };
  const auto k_normed = [&](std::int32_t k) {
    return norms ? b.rms_norm(m.k_norm, k, each ? s.kv_heads : 1, s.eps, {.wide_weight = wide}) : k;
  };
  const bool at_once = s.variant->qk_norm != QkNorm::each_head_from_config;  // else after all three projections
  auto q = b.linear(m.q, x);
  if (at_once) q = q_normed(q);
  auto k = b.linear(m.k, x);
  if (at_once) k = k_normed(k);
  const auto v = b.linear(m.v, x);
  if (!at_once) q = q_normed(q), k = k_normed(k);
  const auto turned = [&](std::int32_t rows, std::int64_t heads) {
    return b.rotary(m.attention, rows, {.heads = heads, .head_dim = s.head_dim, .theta = s.theta, .wide_angles = wide});
  };
  if (s.rotated == 0) {
    q = turned(q, s.heads);
    k = turned(k, s.kv_heads);
  } else {
    std::tie(q, k) = b.rotary_of_parts(
        m.attention, q, k,
        {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .theta = s.theta, .rotated = s.rotated});
  }
  const auto mixed = b.attention(m.attention, {q, k, v},
                                 {.heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .head_dim = s.head_dim,
                                  .window = window,
                                  .score_factor = s.times.scores,
                                  .by_head = s.rotated > 0});
  return b.linear(m.o, mixed);
}

std::int32_t run_mlp(GraphBuilder& b, const LlamaBlock& m, const LlamaShape& s, std::int32_t x) {
  return m.of_experts ? run_experts(b, m.experts, s.experts, x) : run_gated(b, m.mlp, x);
}

std::int32_t run_block(GraphBuilder& b, const LlamaBlock& m, const LlamaShape& s, std::int64_t window, std::int32_t x) {
  if (s.variant->norms_after) {
    x = b.add(m.self, x, b.rms_norm(m.post_norm, run_attention(b, m, s, window, x), 1, s.eps, {.wide_weight = true}));
    return b.add(m.self, x, b.rms_norm(m.last_norm, run_mlp(b, m, s, x), 1, s.eps, {.wide_weight = true}));
  }
  const auto added = [&](std::int32_t branch) {
    return b.add(m.self, x, s.variant->multiplied ? b.scale(m.self, branch, s.times.residual) : branch);
  };
  x = added(run_attention(b, m, s, window, b.rms_norm(m.input_norm, x, 1, s.eps)));
  return added(run_mlp(b, m, s, b.rms_norm(m.post_norm, x, 1, s.eps)));
}

}  // namespace

ModelGraph import_llama(JsonObject& config, std::string_view where,
                        std::int64_t /*seq_len: rotary positions have no size*/) {
  const LlamaShape s = read(config);
  const std::string prefix(s.variant->prefix);
  GraphBuilder b(s.variant->model_type, prefix + "ForCausalLM");
  const auto model = b.module(0, "model", prefix + (s.variant->model_type.ends_with("_text") ? "TextModel" : "Model"));
  const auto embed = b.embedding_module(model, "embed_tokens", s.vocab, s.hidden);
  const auto list = b.list(model, "layers");
  std::vector<LlamaBlock> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "norm", prefix + "RMSNorm", s.hidden, false);
  b.module(model, "rotary_emb", prefix + "RotaryEmbedding");
  const auto head = b.lm_head(embed, s.tied);

  auto x = b.embedding(embed, b.ids());
  if (s.variant->multiplied) x = b.scale(model, x, s.times.embedding);
  for (std::size_t i = 0; i < blocks.size(); ++i) x = run_block(b, blocks[i], s, s.window[i], x);
  auto logits = b.linear(head, b.rms_norm(norm, x, 1, s.eps, {.wide_weight = s.variant->norms_after}));
  if (s.variant->multiplied) logits = b.scale(0, logits, s.times.logits);
  ModelGraph graph = b.finish(logits, s.vocab, s.positions, where);
  graph.notes = s.experts.notes;
  return graph;
}

}  // namespace fsdp
