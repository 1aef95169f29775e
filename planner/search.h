// Picking a plan: wrap x reshard x activation checkpointing x micro-batch x mesh, under a memory limit.
//
//   PlanResult r = search(model, cluster, options, score);     // score: lower + predict, given by the caller
//   r.best ? r.best->plan : r.why_none
//
// The naive plan (one unit per block, default reshard) is always a candidate, so the answer is never worse than it.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/cluster.h"
#include "models/graph.h"
#include "models/implementation.h"
#include "models/units.h"
#include "planner/breakdown.h"
#include "planner/plan.h"
#include "planner/verdict.h"

namespace fsdp {

struct Score {
  Seconds step;
  Bytes peak_total;  // what must fit: as Prediction::peak_total
  Verdict verdict = Verdict::does_not_fit;
  Breakdown where;
  Bytes pinned{};            // host memory of a rank for what is offloaded; no limit is known
  std::int64_t retries = 0;  // of a tight plan: how often in a step the allocator stops to give memory back
  double out_of_memory = 0;  // probability, of a plan that fits by its prediction
};

// A run that ends out of memory counts as this part of the training lost: its start, its wait for another place, the
// slower plan that follows. Of plans whose speed differs by less than what this makes of their risks, the one of
// less risk is chosen.
inline constexpr double kLostByOutOfMemory = 0.2;
// How many times as long as its step a plan with this score counts.
[[nodiscard]] inline double with_risk(const Score& s) { return 1 + kLostByOutOfMemory * s.out_of_memory; }
// What a caller says of plans: a score, and perhaps sooner one that only tells whether the plan fits, not whether one
// that does not is tight.
class ScoreFunction {
 public:
  using Function = std::function<Score(const ShardingPlan&)>;
  ScoreFunction() = default;
  template <std::invocable<const ShardingPlan&> F>
  ScoreFunction(F score) : score_(std::move(score)) {}  // NOLINT(google-explicit-constructor): any function is one
  ScoreFunction(Function score, Function fit) : score_(std::move(score)), fit_(std::move(fit)) {}

  [[nodiscard]] Score operator()(const ShardingPlan& plan) const { return score_(plan); }
  [[nodiscard]] Score fit(const ShardingPlan& plan) const { return fit_ ? fit_(plan) : score_(plan); }

 private:
  Function score_, fit_;
};
struct StepTime {
  Seconds step;
  Breakdown where;
};
using TimeFunction = std::function<StepTime(const ShardingPlan&)>;

// Choices that the user left open besides those that are optional below; false: the base plan's value stays.
struct OpenChoices {
  bool loss_chunks = false, grad_sync = false, forward_prefetch = false, reduce_scatter_buffers = false,
       separate_reduce_scatter = false, embedding_once = false;
};

// How far a search goes: plans of which all units and blocks are alike; or from the best of these on, each choice by
// itself and by unit (search/improve.h).
enum class Effort : std::uint8_t { uniform, joint };

// Fixed by the user where set, searched where empty.
struct SearchOptions {
  ShardingPlan base;  // everything that is not searched: dtypes, optimizer, clipping, seq_len, dialect, seed
  std::int64_t ranks = 1;
  std::optional<std::int64_t> micro_batch, grad_accum, global_batch;  // sequences; any two decide the third
  std::optional<std::string> wrap, checkpointing;
  std::optional<Reshard> reshard;
  std::optional<std::int64_t> replicate;
  // Ranks that see sequences of their own: a tensor group counts once.
  [[nodiscard]] std::int64_t data_ranks() const { return ranks / base.tensor(); }
  bool selective_op = false;  // the implementation can recompute selectively: try that, too
  bool chunk_head = false;    // of all plans the output layer runs with each of base.loss_chunks parts of the loss
  OpenChoices open;
  Effort effort = Effort::uniform;
  std::int64_t most_simulations = 1500;  // of the joint search
  bool any_that_fits = false;            // the search ends with the first plan that fits, and says nothing in words
  Bytes memory_limit;                    // per GPU
  std::function<void(std::int64_t done, std::int64_t total)> progress;        // may be empty
  std::function<void(std::int64_t simulated, double better)> joint_progress;  // better: by this part of the time
  // The part of a score that does not need the memory, asked where that is known. May be empty.
  TimeFunction timed;
  // Which plans may be chosen beside `check`: throws InputError for others, and says why. May be empty.
  std::function<void(const ShardingPlan&)> rule;
  // Asked between simulations; true: the search ends soon, with the best that it has found. May be empty.
  std::function<bool()> stop;
};

// Why a candidate lost against the best, in one clause.
struct Reason {
  std::optional<Verdict> verdict;  // that decided it
  std::string clause;              // empty for the best
  [[nodiscard]] std::string text() const { return verdict ? std::string(name(*verdict)) + ": " + clause : clause; }
};

struct Candidate {
  ShardingPlan plan;
  Score score;
  std::string label;  // "block:2, reshard, checkpoint full, micro-batch 2, replicate 1"
  Reason why_lost;
  bool naive = false;
};

struct PlanResult {
  std::optional<Candidate> best;  // none: nothing fits
  // Where the best is tight and gives memory back in each step: the fastest tight plan that does not.
  std::optional<Candidate> without_retries;
  Candidate naive;                   // scored in any case
  std::optional<Candidate> uniform;  // the best plan of which all units and blocks are alike, where another is better
  // Where the best is not the fastest that was found, because that would run out of memory more often: the fastest.
  std::optional<Candidate> fastest;
  std::int64_t simulated_jointly = 0;   // plans that the joint search simulated
  bool exhausted = false;               // it ended because it had simulated as many as it may
  bool stopped = false;                 // `stop` ended the search: another plan may be better, or fit where none did
  std::vector<Candidate> rivals;        // at most 5, the most instructive first
  std::vector<Candidate> scored_plans;  // every one, in the order of the search; none has lost where nothing fits
  std::int64_t considered = 0, pruned = 0, scored = 0;
  std::string searched;  // what was left open and hence searched, for the verdict line
  // Where nothing fits:
  std::optional<Candidate> least;  // of the simulated plans, the one that needs least memory
  Bytes least_bound;     // no plan reserves less without a limit; `least` may be the only one that was simulated
  std::string why_none;  // both in words
};

[[nodiscard]] PlanResult search(const ModelGraph&, const ClusterSpec&, const Implementation&, const SearchOptions&,
                                const ScoreFunction&);

// A lower bound on the peak of any schedule of this plan (states + one gathered unit + saved activations), for pruning.
[[nodiscard]] Bytes memory_lower_bound(const ModelGraph&, const ShardingPlan&, const Implementation&);

}  // namespace fsdp
