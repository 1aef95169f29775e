// The Llama of a recorded case, by the sizes that its recorder wrote down.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/catalog.h"

namespace fsdp {

inline ModelGraph recorded_llama(const nlohmann::json& c) {
  return model_from_config(
      fmt::format(R"({{"model_type": "llama", "vocab_size": {}, "hidden_size": {}, "intermediate_size": {},
                       "num_hidden_layers": {}, "num_attention_heads": {}, "num_key_value_heads": {},
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                       "hidden_act": "silu", "tie_word_embeddings": {}}})",
                  c["vocab"].get<int>(), c["hidden"].get<int>(), c["inner"].get<int>(), c["layers"].get<int>(),
                  c["heads"].get<int>(), c["kv_heads"].get<int>(), c["tied"].get<bool>()),
      "golden");
}

}  // namespace fsdp
