// What would make a plan fit: changes of the question that was asked, each tried by simulating the plan with it.
//
// Changes with a size are searched: the fewest GPUs, by nodes, and the longest sequence, by steps of its size, that let
// the plan fit. A search halves an interval, which takes memory to grow with the sequence and to shrink with the GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/graph.h"
#include "planner/plan.h"
#include "planner/search.h"

namespace fsdp {

// What is asked instead; all of it at once.
struct Change {
  bool compiled = false;                      // the implementation's compiled variant
  bool offload_optimizer = false;             // the optimizer's states alone in host memory, between steps
  bool offload = false;                       // the plan's shards in host memory, with all states
  std::optional<std::int64_t> loss_chunks{};  // the loss computed in parts
  std::optional<OptimizerKind> optimizer{};   // one that keeps less, and trains otherwise
  // What shards are kept in, and what of them is trained: without the second adapters train otherwise.
  std::optional<DType> master_dtype{}, trained_dtype{};
  std::optional<std::int64_t> gpus{}, seq_len{};
  friend bool operator==(const Change&, const Change&) = default;
};

struct Remedy {
  Change change;
  Score score;               // of the plan with it
  std::string another_plan;  // its label, where that one fits and the plan itself does not
};

// The question after a change: the model (of another sequence, say) and what scores plans of it.
struct ChangedSetup {
  ModelGraph model;
  ScoreFunction score;
  std::function<void(const ShardingPlan&)> rule = {};  // as SearchOptions::rule; may be empty
};
// Throws InputError for a change that is not possible.
using ChangeFunction = std::function<ChangedSetup(const Change&)>;

struct RemedyOptions {
  bool compile = false, offload_optimizer = false, offload = false, chunks = false, optimizer = false;  // may be tried
  bool master_dtype = false, more_gpus = false, shorter = true;
  std::optional<DType> trained_dtype{};  // with master_dtype
  std::int64_t gpus_per_node = 1;        // of more_gpus, which ddp has none of
  Bytes memory_limit;
  // The best plan after a change other than of the sequence, asked for where the plan itself nearly fits; may be empty,
  // and may find none.
  std::function<std::optional<Candidate>(const Change&)> searched;
  std::function<void(const Change&)> told;  // hears of each trial; may be empty
};

// At most some 40 simulations, and a search for each change with which the plan itself nearly fits. Only what fits, or
// needs less memory by 1 % or more.
[[nodiscard]] std::vector<Remedy> find_remedies(const Candidate& plan, const RemedyOptions&, const ChangeFunction&);

// Does it fit, or need less memory than `before` by 1 % or more?
[[nodiscard]] bool helps(const Score&, const Score& before);

// One change; nullopt: it is not possible.
[[nodiscard]] std::optional<Score> score_changed(const ShardingPlan&, const Change&, const ChangeFunction&);

}  // namespace fsdp
