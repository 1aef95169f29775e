// A model from the few numbers that a table of runs has room for: layers, hidden size, heads and so on. What the table
// leaves out is assumed from the customs of the family, and every assumption is reported.
//
//   const ArchitectureModel m = model_from_architecture({.name = "Llama-3-8B", .layers = 32, .hidden = 4096, ...},
//     "runs.csv: 7");
//   m.graph.parameter_count();  m.assumptions    // "heads: head size 128"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/graph.h"

namespace fsdp {

struct Architecture {
  std::string name;  // as people write it: "MPT-7b", "Llama-3-8B", "our GPT"
  std::optional<std::int64_t> layers, hidden, heads, kv_heads, ffn, vocab, seq_len;
  std::optional<std::int64_t> experts, experts_per_token, moe_ffn;  // moe_ffn: of one expert
  std::string family;                  // of models whose name says none: "llama"; empty: not known
  std::optional<std::int64_t> params;  // as published: decides what the other numbers leave open, and is a check
  friend bool operator==(const Architecture&, const Architecture&) = default;
};

struct ArchitectureModel {
  ModelGraph graph;
  std::vector<std::string> assumptions;  // one sentence each
};

// The family comes from the name (MPT, GPT-2, Llama, Mistral, Qwen2, Qwen3). For any other name it is the modelled
// decoder whose number of parameters comes nearest to `params`; without `params`, the one that the feed-forward size
// suggests (4 hidden: GPT-like; else Llama-like). Throws InputError(where, ...): no layers or hidden size and a name
// that is not in the catalog, impossible sizes, a kind of model that is not modelled (experts but Qwen3's, encoders,
// adapters), a number of parameters that no form comes near.
[[nodiscard]] ArchitectureModel model_from_architecture(const Architecture&, std::string_view where);

// How far the parameters of a graph may be from the published number, which is often rounded ("2.7 B").
inline constexpr double kParameterTolerance = 0.05;

}  // namespace fsdp
