// The flags that commands share, and what they mean. One table names each flag once; values stay text until they are
// resolved, so that every bad one is refused in the same words, with the flag's name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/command.h"
#include "models/catalog.h"
#include "models/implementation.h"
#include "models/input/error.h"
#include "models/input/limits.h"
#include "planner/costs.h"
#include "planner/plan.h"
#include "planner/search.h"
#include "simulator/predict.h"

namespace fsdp::cli {

using Text = std::optional<std::string>;  // as typed; empty: not given

struct Flags {
  Text model, cluster, gpus, costs, implementation, memory_limit;
  bool compile = false;
  // What a plan decides.
  Text seq_len, micro_batch, grad_accum, global_batch, dialect, wrap, reshard, replicate, grad_sync, forward_prefetch,
      backward_prefetch, limit_all_gathers, use_orig_params, checkpointing, offload, param_dtype, reduce_dtype,
      optimizer, clip_norm, seed;
  Text plan;  // a plan.json, which then decides all of the above
};

// --model --cluster --gpus --costs --implementation --compile --memory-limit
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

// Loads what --model, --cluster, --gpus, --costs, --implementation, --memory-limit and --seq-len name. `plan`, when
// given, decides the number of GPUs and the sequence length. Throws InputError.
[[nodiscard]] Setup resolve_setup(const Flags&, const ShardingPlan* plan = nullptr);

// The plan in --plan, read, parsed and checked (not yet against a model). Refuses flags that the plan decides already.
[[nodiscard]] ShardingPlan plan_from_file(const Flags&);
// The naive plan with the given flags applied, checked. What is not given keeps its default: micro-batch 1, one
// micro-batch.
[[nodiscard]] ShardingPlan plan_from_flags(const Flags&, const Setup&);
// What the flags fix for a search; the rest is left open.
[[nodiscard]] SearchOptions search_from_flags(const Flags&, const Setup&);

// For a command that goes on with the plan's file: the given flags that decide a prediction and that the file does not
// hold, as one would type them: "--model llama3-8b --cluster dgx-h100 --compile".
[[nodiscard]] std::string flags_beside_the_plan(const Flags&);
// A word as a shell reads it back: quoted where it has to be.
[[nodiscard]] std::string shell_word(const std::string&);

inline constexpr std::int64_t kMostSteps = 1'000'000'000;  // that any flag can ask for

// Whole numbers from text: "--gpus: '-3' is not a whole number from 1 to 1,000,000; ...".
[[nodiscard]] std::int64_t parse_count(const std::string& text, const std::string& where, std::int64_t least,
                                       std::int64_t most);
[[nodiscard]] std::optional<std::int64_t> parse_optional_count(const Text& text, const char* flag, std::int64_t least,
                                                               std::int64_t most);
// The same of a flag whose field has a limit: its name is that of the field's flag.
[[nodiscard]] std::int64_t parse_count(const std::string& text, const Limit&);
[[nodiscard]] std::optional<std::int64_t> parse_optional_count(const Text& text, const Limit&);
// "5%" -> 0.05; the percent sign is required.
[[nodiscard]] double parse_percent(const std::string& text, const std::string& where);

}  // namespace fsdp::cli
