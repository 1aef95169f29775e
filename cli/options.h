// The flags that commands share, and what they mean. One table names each flag once; values stay text until they are
// resolved, so that every bad one is refused in the same words, with the flag's name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cli/command.h"
#include "cli/numbers.h"
#include "models/catalog.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/plan/file.h"
#include "planner/search.h"
#include "simulator/predict.h"

namespace fsdp::cli {

struct Flags {
  Text model, lora, cluster, gpus, costs, implementation, memory_limit, headroom, reserve, price;
  Text layers, hidden, heads, kv_heads, head_dim, ffn, vocab, experts, experts_per_token;  // of --model generic
  bool compile = false, no_compile = false, async_tensor = false;
  // What a plan decides.
  Text seq_len, micro_batch, grad_accum, global_batch, global_batch_tokens, dialect, wrap, reshard, replicate, tensor,
      expert_shard, grad_sync, forward_prefetch, backward_prefetch, limit_all_gathers, use_orig_params, checkpointing,
      offload, offload_activations, offload_optimizer, param_dtype, reduce_dtype, master_dtype, trained_dtype, float8,
      float8_all_gather, float8_precomputed_scales, loss_chunks, chunk_head, loss_in_model, host_threads,
      reduce_scatter_buffers, separate_reduce_scatter, optimizer, lr, weight_decay, momentum, clip_norm, seed;
  Text plan;  // a plan.json, which then decides all of the above
};

// --model --cluster --gpus --costs --implementation --compile --memory-limit --headroom --reserve --price
void add_setup_flags(const Command&, Flags&);
// --seq-len --micro-batch ... --seed: what a plan decides.
void add_plan_flags(const Command&, Flags&);

// What every command below starts from.
struct Setup {
  ModelGraph model;
  ClusterSpec cluster;
  const Implementation* implementation = nullptr;
  Costs costs;
  PredictOptions options;  // memory_limit is set
  std::int64_t seq_len = 0;
};

// What the files of a model and a cluster leave out or hold besides goes to standard error: once for an answer, so that
// what is tried on the way to it is silent.
enum class Notes : std::uint8_t { printed, silent };

// Loads what --model, --cluster, --gpus, --costs, --implementation, --memory-limit, --price and --seq-len name. `plan`,
// when given, decides the number of GPUs and the sequence length, and without --implementation what predictions use is
// the one that its file names. Throws InputError.
[[nodiscard]] Setup resolve_setup(const Flags&, const PlanFile* plan = nullptr, Notes = Notes::printed);

// The plan in --plan, read, parsed and checked (not yet against a model). Refuses flags that the plan decides already.
[[nodiscard]] PlanFile plan_from_file(const Flags&);
// The naive plan with the given flags applied, checked. What is not given keeps its default: micro-batch 1, one
// micro-batch.
[[nodiscard]] ShardingPlan plan_from_flags(const Flags&, const Setup&);
// The plan as its file has it: with the implementation, where flags name one.
[[nodiscard]] PlanFile file_of(const ShardingPlan&, const Flags&, const Setup&);
// What the flags fix for a search; the rest is left open.
[[nodiscard]] SearchOptions search_from_flags(const Flags&, const Setup&);

// An error about a plan that was made from these flags, said of the flag that decided it.
[[nodiscard]] InputError naming_given_flags(const InputError&, const Flags&);

// For a command that goes on with the plan's file: the given flags that decide a prediction and that the file does not
// hold, as one would type them: "--model llama3-8b --cluster dgx-h100 --compile".
[[nodiscard]] std::string flags_beside_the_plan(const Flags&);
// Sets a flag of add_plan_flags, "--micro-batch"; false: none has this name.
[[nodiscard]] bool set_plan_flag(Flags&, std::string_view name, const std::string& value);
// All given flags, as one would type them again.
[[nodiscard]] std::string all_given(const Flags&);

}  // namespace fsdp::cli
