// The tensors in which the Hugging Face hub, save_pretrained of transformers 5 and peft keep a model's parameters. Most
// stand under the names of named_parameters(). transformers stacks the matrices of experts in memory, and files hold
// one tensor per expert and matrix; files of Mixtral call its feed-forward "block_sparse_moe".
//
//   hub_tensors(mixtral, gate_up_proj)  -> model.layers.0.block_sparse_moe.experts.0.w1.weight [ffn, hidden], ...
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/graph.h"

namespace fsdp {

struct HubTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // the first of the parameter's elements that it holds; the others follow, row-major
  friend bool operator==(const HubTensor&, const HubTensor&) = default;
};

// One after the other they are the parameter. Of a model with adapters: the frozen weights as the model without
// adapters has them, an adapter's as peft's save_pretrained writes them.
[[nodiscard]] std::vector<HubTensor> hub_tensors(const ModelGraph&, const Parameter&);

// Of a model with adapters (graph/lora.h): what a parameter is to an adapter.
enum class LoraPart : std::uint8_t { none, down, up };  // down: A [rank, in]; up: B [out, rank]
[[nodiscard]] LoraPart lora_part(const Parameter&);
[[nodiscard]] bool has_adapters(const ModelGraph&);

// How many experts the module that holds the parameter has; 0: it is not of experts.
[[nodiscard]] std::int64_t expert_count(const ModelGraph&, const Parameter&);

}  // namespace fsdp
