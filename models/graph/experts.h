// Mixtures of experts in a model, and the model as torchtitan and as transformers 4 build it, of one as transformers 5
// does.
//
//   const ModelGraph titan = with_torchtitan_experts(load_model("qwen3-30b-a3b"), {.fp32_routers = true});
#pragma once

#include "models/graph.h"

namespace fsdp {

struct TorchtitanExperts {
  // Rows are gathered and put back by the module around the experts, where a shared expert runs between; else by
  // theirs.
  bool sorted_outside = false;
  bool fp32_routers = false;  // of tokens and weights cast to fp32; else they multiply in the activations' type
};

[[nodiscard]] bool has_experts(const ModelGraph&);
[[nodiscard]] bool has_looped_experts(const ModelGraph&);  // as with_looped_experts() makes them

// Gate and up of the experts are two parameters, w1 and w3, but for gpt-oss's. Modules keep their names. A model
// without experts stays as it is.
[[nodiscard]] ModelGraph with_torchtitan_experts(ModelGraph, TorchtitanExperts);

// Experts one after the other: each finds its rows, multiplies them by its own three matrices (gate, up, down), and is
// added to those before it. Weights of choices are in the type of activations. Modules keep their names.
[[nodiscard]] ModelGraph with_looped_experts(ModelGraph);
// Which dimension of a parameter is dimension `dim` of the one that it is a part of: an expert's own matrix has none of
// experts, and its rows stand for that.
[[nodiscard]] std::int64_t dim_of_part(const Parameter&, std::int64_t dim);

}  // namespace fsdp
