// Over how many tensor ranks should each layer be split? One search for each size that could be worth it.
//
//   const SizesResult r = search_sizes({1, 2, 4, 8}, options_of, model, cluster, implementation, costs, score);
//   r.chosen().result->best ? r.chosen().result->best->plan : ...
//
// Sizes are tried in their order. Once a plan fits, another size is searched only if its certificate (space_bound.h)
// leaves room for a plan that is faster by kWorthSplitting, and is taken only if one is: splitting a layer changes what
// all ranks compute and send, and its predictions are less sure (docs/accuracy.md).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "planner/bound/space_bound.h"
#include "planner/search.h"

namespace fsdp {

inline constexpr double kWorthSplitting = 1.05;
// What the joint search has gained over plans that treat all blocks alike is 0.4 to 5.6 % (docs/search.md). A further
// size is searched jointly only where so much would make it the best.
inline constexpr double kMostGained = 1.10;

struct SizeSearched {
  std::int64_t tensor = 1;
  std::optional<PlanResult> result;  // none: not searched, because
  bool uniform = false;              // only plans that treat all blocks alike were: others would not catch up
  bool ruled_out = false;            // no plan of this size is faster by kWorthSplitting than one that fits, or
  std::string refusal;               // such plans are not possible
  [[nodiscard]] bool fits() const { return result && result->best && result->best->score.verdict == Verdict::fits; }
};

struct SizesResult {
  std::vector<SizeSearched> sizes;
  // Its index: the fastest that fits; or else the first tight one; or else the one whose least plan needs least.
  std::size_t best = 0;
  [[nodiscard]] const SizeSearched& chosen() const { return sizes[best]; }
};

// Sizes ascend. Throws InputError where none is possible: the reason of the first.
[[nodiscard]] SizesResult search_sizes(const std::vector<std::int64_t>& sizes,
                                       const std::function<SearchOptions(std::int64_t tensor)>& options_of,
                                       const ModelGraph&, const ClusterSpec&, const Implementation&, const Costs&,
                                       const ScoreFunction&);

// 1, and the powers of two of ranks that share a node.
[[nodiscard]] std::vector<std::int64_t> tensor_sizes(const ClusterSpec&);

// Seconds of a GPU for a sequence, of a plan with its step time.
[[nodiscard]] double gpu_seconds_per_sequence(const ShardingPlan&, Seconds step);

}  // namespace fsdp
