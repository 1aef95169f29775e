// Small models of a real family, made from the text of a config.json.
#pragma once

#include <fmt/format.h>

#include "models/catalog.h"
#include "models/graph.h"

namespace fsdp {

struct SmallLlama {
  int layers = 3, vocab = 40, hidden = 24, inner = 36, heads = 4, kv_heads = 2;
  bool tied = false;
};

inline ModelGraph small_llama(const SmallLlama& s = {}) {
  return model_from_config(
      fmt::format(
          R"({{"model_type": "llama", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": {},
                      "num_key_value_heads": {}, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": {}}})",
          s.vocab, s.hidden, s.inner, s.layers, s.heads, s.kv_heads, s.tied),
      "small_llama");
}

inline ModelGraph small_mixtral(int experts = 4) {
  return model_from_config(
      fmt::format(
          R"({{"model_type": "mixtral", "capacity_factor": 1.0, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 20,
                            "max_position_embeddings": 64, "num_attention_heads": 4, "num_experts_per_tok": {}, "num_hidden_layers": 1,
                            "num_key_value_heads": 2, "num_local_experts": {}, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                            "tie_word_embeddings": false, "vocab_size": 41}})",
          experts < 2 ? experts : 2, experts),
      "small_mixtral");
}

// hidden 32, experts 24 wide, 4 heads of 8 over 2 of keys, 2 of 4 experts a token.
inline ModelGraph small_gpt_oss(int layers) {
  return model_from_config(
      fmt::format(R"({{"model_type": "gpt_oss", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 24,
                       "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
                       "num_local_experts": 4, "num_experts_per_tok": 2}})",
                  layers),
      "small_gpt_oss");
}

}  // namespace fsdp
