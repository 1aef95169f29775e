// What a published row says beside data parallelism: adapters, and other kinds of parallelism.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/graph/lora.h"
#include "planner/plan.h"
#include "simulator/published/reading/published_runs.h"

namespace fsdp {

struct RunAdapters {
  LoraSpec layers;
  bool experts = false;   // every matrix of every expert, too (simulator/published/prime_rl_model.h)
  std::int64_t held = 1;  // of which one is used
};
// The model without the word that says of ATorch's runs that it has adapters: "Llama-2-7B" of "Llama-2-7B LoRA".
[[nodiscard]] std::string base_model_of(const PublishedRun&);
// From the columns `lora` ("16", or what --lora takes) or `lora_rank` and `lora_targets` ("q,k,v,o,gate,up,down_proj",
// "all linear", and behind others "experts (w1,w2,w3)"). What they leave out is added to `assumptions`. Throws
// InputError for targets that have no name here.
[[nodiscard]] std::optional<RunAdapters> adapters_of(const PublishedRun&, std::vector<std::string>& assumptions);

// peft makes adapters fp32, whatever the weights were loaded in (get_peft_model's autocast_adapter_dtype, since 0.12 of
// August 2024). In runs of transformers whose weights are in 16 bits without mixed precision nothing casts them again:
// the plan says so, and `assumptions`. Those on weights in 4 bits run under autocast.
void keep_adapters_in_fp32(ShardingPlan&, const PublishedRun&, const ModelGraph&,
                           std::vector<std::string>& assumptions);

// Of a model of experts, which are not named by their layers: the names of a feed-forward's layers find those of its
// dense blocks, of which there may be none, and no shared expert's. Throws InputError where no other was named.
void name_dense_feed_forward(LoraSpec&, const ModelGraph&);

// Throws InputError, which names the column, for tensor, context, pipeline and expert parallelism.
void refuse_unknown_parallelism(const PublishedRun&);

// Channels of a head; 0: the model has no attention.
[[nodiscard]] std::int64_t head_dim_of(const ModelGraph&);

}  // namespace fsdp
