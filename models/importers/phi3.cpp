// Phi-3 and Phi-4: as Llama, with one matrix for q, k and v and one for gate and up. Rotary positions may turn a part
// of each head; its "longrope" scaling changes angles alone (models/importers/llama.cpp).
#include "models/importers/builder.h"
#include "models/importers/decoder.h"
#include "models/importers/importers.h"

namespace fsdp {
namespace {

struct Phi3Shape : DecoderShape {
  std::int64_t rotated = 0, window = 0;
};

Phi3Shape read(JsonObject& config) {
  Phi3Shape s;
  static_cast<DecoderShape&>(s) = read_decoder(config, {.eps = 1e-5}, "intermediate_size");
  require_text(config, "hidden_act", "silu");
  s.rotated = rotated_channels(
      config, s.head_dim, rope_number(config, "partial_rotary_factor", "partial_rotary_factor", 1e-6, 1).value_or(1));
  s.window = config.optional_integer("sliding_window", 1, kMaxPositions).value_or(0);
  return s;
}

struct Phi3Block {
  std::int32_t self, attention, o, qkv, mlp, gate_up, down, input_norm, post_norm;
};

Phi3Block add_block(GraphBuilder& b, std::int32_t list, std::int64_t index, const Phi3Shape& s) {
  Phi3Block m{};
  m.self = b.block(list, index, "Phi3DecoderLayer");
  m.attention = b.module(m.self, "self_attn", "Phi3Attention");
  m.o = b.linear_module(m.attention, "o_proj", s.heads * s.head_dim, s.hidden, false);
  m.qkv = b.linear_module(m.attention, "qkv_proj", s.hidden, (s.heads + 2 * s.kv_heads) * s.head_dim, false);
  m.mlp = b.module(m.self, "mlp", "Phi3MLP");
  m.gate_up = b.linear_module(m.mlp, "gate_up_proj", s.hidden, 2 * s.ffn, false);
  m.down = b.linear_module(m.mlp, "down_proj", s.ffn, s.hidden, false);
  b.module(m.mlp, "activation_fn", "SiLUActivation");
  m.input_norm = b.norm_module(m.self, "input_layernorm", "Phi3RMSNorm", s.hidden, false);
  m.post_norm = b.norm_module(m.self, "post_attention_layernorm", "Phi3RMSNorm", s.hidden, false);
  b.module(m.self, "resid_attn_dropout", "Dropout");
  b.module(m.self, "resid_mlp_dropout", "Dropout");
  return m;
}

std::int32_t run_block(GraphBuilder& b, const Phi3Block& m, const Phi3Shape& s, std::int32_t x) {
  const auto qkv = b.linear(m.qkv, b.rms_norm(m.input_norm, x, 1, s.eps));
  const auto turned = b.rotary(m.attention, qkv,
                               {.heads = s.heads,
                                .kv_heads = s.kv_heads,
                                .head_dim = s.head_dim,
                                .packed = true,
                                .theta = s.theta,
                                .rotated = s.rotated});
  const auto mixed =
      b.attention(m.attention, {turned, qkv},
                  {.heads = s.heads, .kv_heads = s.kv_heads, .head_dim = s.head_dim, .window = s.window});
  x = b.add(m.self, x, b.linear(m.o, mixed));
  const auto gate_up = b.linear(m.gate_up, b.rms_norm(m.post_norm, x, 1, s.eps));
  return b.add(m.self, x, b.linear(m.down, b.packed_swiglu(m.mlp, gate_up)));
}

}  // namespace

ModelGraph import_phi3(JsonObject& config, std::string_view where, std::int64_t /*seq_len*/) {
  const Phi3Shape s = read(config);
  GraphBuilder b("phi3", "Phi3ForCausalLM");
  const auto model = b.module(0, "model", "Phi3Model");
  const auto embed = b.embedding_module(model, "embed_tokens", s.vocab, s.hidden);
  const auto list = b.list(model, "layers");
  std::vector<Phi3Block> blocks;
  for (std::int64_t i = 0; i < s.layers; ++i) blocks.push_back(add_block(b, list, i, s));
  const auto norm = b.norm_module(model, "norm", "Phi3RMSNorm", s.hidden, false);
  b.module(model, "rotary_emb", "Phi3RotaryEmbedding");
  const auto head = b.lm_head(embed, s.tied);

  auto x = b.embedding(embed, b.ids());
  for (const Phi3Block& m : blocks) x = run_block(b, m, s, x);
  return b.finish(b.linear(head, b.rms_norm(norm, x, 1, s.eps)), s.vocab, s.positions, where);
}

}  // namespace fsdp
