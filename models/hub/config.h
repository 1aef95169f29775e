// config.json, from which transformers builds the model whose weights stand beside it.
#pragma once

#include <string>
#include <string_view>

#include "models/dtype.h"
#include "models/graph.h"

namespace fsdp {

struct HubConfig {
  std::string text;     // empty: transformers has no model that takes these weights
  std::string problem;  // why; or, beside a text, differs_from_transformers; for people
};

// What a run computes otherwise than transformers does with the same weights; empty: nothing. `config` is the
// config.json that the graph was imported from.
[[nodiscard]] std::string differs_from_transformers(std::string_view config, const ModelGraph&);

// `config` is the config.json that the graph was imported from. All of its fields stay but two: "dtype" (and
// "torch_dtype") says `dtype`, and "quantization_config" goes, for these weights are not quantised. What the graph
// took for granted and transformers may not is added: model_type, architectures, tie_word_embeddings.
[[nodiscard]] HubConfig hub_config(std::string_view config, const ModelGraph&, DType dtype);

}  // namespace fsdp
