// Low-rank adapters (LoRA) as Hugging Face's peft puts them into a model: every parameter is frozen, and each adapted
// linear layer y = W x becomes y = W x + (alpha / rank) B (A x), with A [rank, in] and B [out, rank] trained.
//
//   const ModelGraph adapted = add_lora(load_model("llama3-8b"), {.rank = 16}, setting("lora"));
//
// Names, modules and the order of ops are those of peft 0.21 (tests/torch/record_lora.py): q_proj becomes a module with
// children base_layer, lora_A.default and lora_B.default. Dropout, which peft leaves out at 0, is part of A's product.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"
#include "models/input/error.h"

namespace fsdp {

struct LoraSpec {
  std::int64_t rank = 0;             // at least 1
  std::optional<double> alpha = {};  // empty: as large as the rank
  // Modules whose name is one of these or ends in "." and one of these; empty: every linear layer but the one that
  // makes the logits, which peft calls "all-linear".
  std::vector<std::string> targets = {};
  double dropout = 0;              // of what an adapter reads; below 1
  FourBits base = FourBits::none;  // how frozen weights are kept (QLoRA; models/graph/four_bits.h)
  bool prepared = false;           // ... and the rest is prepared for autocast (planner/tensor/prepared_casts.h)
  friend bool operator==(const LoraSpec&, const LoraSpec&) = default;
};

// "16", "rank=16", "rank=16,alpha=32,targets=q_proj+v_proj,dropout=0.05,base=nf4" (or nf4-double), with ",prepared" (by
// peft's prepare_model_for_kbit_training, whose embedded tokens require a gradient).
// Throws InputError(where, ...).
[[nodiscard]] LoraSpec parse_lora(std::string_view text, const Origin& where);

// Throws InputError(where, ...) for a target that names no linear layer, for a layer whose weight is another one's
// (tied) or of experts, for a model that has adapters already, and as in_four_bits does.
[[nodiscard]] ModelGraph add_lora(ModelGraph, const LoraSpec&, const Origin& where);

}  // namespace fsdp
