// Mixtures of experts in a model, and the model as torchtitan builds it, of one as transformers does.
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

// Gate and up of the experts are two parameters, w1 and w3. Modules keep their names. A model without experts stays as
// it is.
[[nodiscard]] ModelGraph with_torchtitan_experts(ModelGraph, TorchtitanExperts);

}  // namespace fsdp
