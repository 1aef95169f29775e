// gpt-oss, as transformers builds it: Llama's decoder with biases, a learned score per head that takes part in the
// softmax of attention (sinks; transformers writes it out), windows in every other layer, and experts whose matrices
// are stored [in, out], with biases, and whose SwiGLU is limited. The limits change values, not work or sizes.
#include <string>

#include "models/importers/builder.h"
#include "models/importers/decoder.h"
#include "models/importers/experts.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

constexpr DecoderDefaults kDefaults{
    .eps = 1e-5, .theta = 150000, .vocab = 201'088, .heads = 64, .kv_heads = 8, .head_dim = 64, .positions = 131'072};
constexpr ExpertVariant kExperts{
    .count_key = "num_local_experts", .width_key = "intermediate_size", .always_renormalised = true};
constexpr OpShape kNorm{.wide_weight = true};
constexpr std::int64_t kWindow = 128;  // where the config says none

struct Shape : DecoderShape {
  ExpertShape experts;
  bool bias = true;                  // of attention's projections
  std::vector<std::int64_t> window;  // per layer, 0: none
};

Shape read(JsonObject& config) {
  Shape s;
  static_cast<DecoderShape&>(s) = read_decoder(config, kDefaults, kExperts.width_key);
  s.experts = read_experts(config, kExperts, s.hidden);
  require_text(config, "hidden_act", "silu");
  require_no_attention_dropout(config);
  s.bias = config.optional_boolean("attention_bias").value_or(true);
  const auto stated = config.optional_integer("sliding_window", 1, kMaxPositions);
  if (config.has("sliding_window") && !stated)
    config.refuse("sliding_window", "is null: transformers makes its mask in any case, and fails",
                  "state a number of tokens; layer_types says which layers have it");
  const std::int64_t window = stated.value_or(kWindow);
  std::vector<std::int64_t> in_turn(static_cast<std::size_t>(s.layers), 0);
  for (std::size_t i = 0; i < in_turn.size(); i += 2) in_turn[i] = window;
  s.window = windows_by_type(config, window, std::move(in_turn));
  return s;
}

struct Block {
  std::int32_t self, attention, q, k, v, o, mlp, router, experts, input_norm, post_norm;
};

Block add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const Shape& s) {
  const std::int64_t n = s.experts.experts.count, q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  Block m{};
  m.self = b.block(list, index, "GptOssDecoderLayer");
  m.attention = b.module(m.self, "self_attn", "GptOssAttention");
  b.parameter(m.attention, "sinks", {s.heads});
  m.q = b.linear_module(m.attention, "q_proj", s.hidden, q, s.bias);
  m.k = b.linear_module(m.attention, "k_proj", s.hidden, kv, s.bias);
  m.v = b.linear_module(m.attention, "v_proj", s.hidden, kv, s.bias);
  m.o = b.linear_module(m.attention, "o_proj", q, s.hidden, s.bias);
  m.mlp = b.module(m.self, "mlp", "GptOssMLP");
  m.router = b.module(m.mlp, "router", "GptOssTopKRouter");
  b.parameter(m.router, "weight", {n, s.hidden});
  b.parameter(m.router, "bias", {n});
  m.experts = b.module(m.mlp, "experts", "GptOssExperts");
  b.parameter(m.experts, "gate_up_proj", {n, s.hidden, 2 * s.ffn});
  b.parameter(m.experts, "gate_up_proj_bias", {n, 2 * s.ffn});
  b.parameter(m.experts, "down_proj", {n, s.ffn, s.hidden});
  b.parameter(m.experts, "down_proj_bias", {n, s.hidden});
  m.input_norm = b.norm_module(m.self, "input_layernorm", "GptOssRMSNorm", s.hidden, false);
  m.post_norm = b.norm_module(m.self, "post_attention_layernorm", "GptOssRMSNorm", s.hidden, false);
  return m;
}

std::int32_t run_attention(GraphBuilder& b, const Block& m, const Shape& s, std::int64_t window, std::int32_t x) {
  auto q = b.linear(m.q, x), k = b.linear(m.k, x);
  const auto v = b.linear(m.v, x);
  const auto turned = [&](std::int32_t rows, std::int64_t heads) {
    return b.rotary(m.attention, rows, {.heads = heads, .head_dim = s.head_dim, .theta = s.theta, .by_halves = true});
  };
  q = turned(q, s.heads);
  k = turned(k, s.kv_heads);
  const auto mixed = b.attention(
      m.attention, {q, k, v},
      {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .window = window, .by_head = true});
  return b.linear(m.o, mixed);
}

std::int32_t run_experts(GraphBuilder& b, const Block& m, const Shape& s, std::int32_t x) {
  const auto routing =
      b.moe_route(m.router, b.linear(m.router, x), s.experts.experts, {.renormalised = true, .of_chosen = true});
  const auto rows = b.moe_dispatch(m.experts, x, routing, s.experts.experts, /*biased=*/true);
  const auto wide = b.packed_swiglu(m.experts, b.expert_linear(m.experts, 0, rows, true), /*clamped=*/true);
  return b.moe_combine(m.experts, b.expert_linear(m.experts, 2, wide, true), routing);
}

}  // namespace

ModelGraph import_gpt_oss(JsonObject& config, std::string_view where,
                          std::int64_t /*seq_len: rotary positions have no size*/) {
  const Shape s = read(config);
  GraphBuilder b("gpt_oss", "GptOssForCausalLM");
  const auto model = b.module(0, "model", "GptOssModel");
  const auto embed = b.embedding_module(model, "embed_tokens", s.vocab, s.hidden);
  const auto list = b.list(model, "layers");
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "norm", "GptOssRMSNorm", s.hidden, false);
  b.module(model, "rotary_emb", "GptOssRotaryEmbedding");
  const auto head = b.lm_head(embed, s.tied);

  auto x = b.embedding(embed, b.ids());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Block& m = blocks[i];
    x = b.add(m.self, x, run_attention(b, m, s, s.window[i], b.rms_norm(m.input_norm, x, 1, s.eps, kNorm)));
    x = b.add(m.self, x, run_experts(b, m, s, b.rms_norm(m.post_norm, x, 1, s.eps, kNorm)));
  }
  const auto logits = b.linear(head, b.rms_norm(norm, x, 1, s.eps, kNorm));
  return b.finish(logits, s.vocab, s.positions, where);
}

}  // namespace fsdp
