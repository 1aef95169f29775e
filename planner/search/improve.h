// The joint search: from designs that are known to be good, one choice after the other is changed while that makes the
// plan faster, and after each change recomputation is fitted anew to the memory limit (the lowest rung of each ladder
// that fits). Judged by the caller's score alone: the real engine and allocator.
//
//   Improved r = improve(space, starts, options, scorer, admission);
//   r.best ? r.best->plan : ...                            // none: nothing that was tried fits
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/search/admission.h"
#include "planner/search/design.h"
#include "planner/search/scorer.h"

namespace fsdp {

struct FittedPlan {
  Design design;
  std::string checkpointing;  // the policy
  ShardingPlan plan;
  Score score;
  [[nodiscard]] double seconds_per_sequence() const;
  [[nodiscard]] double worth() const { return seconds_per_sequence() * with_risk(score); }  // less is better
};

struct Improved {
  std::optional<FittedPlan> best;     // the fastest that fits, among equally fast ones the plainest; counting its risk
  std::optional<FittedPlan> fastest;  // without counting that, where it is another
  std::int64_t simulations = 0;
  bool exhausted = false;  // the number of simulations was used up before no change helped
};

struct ImproveOptions {
  Bytes memory_limit;
  std::int64_t most_simulations = 1500;
  std::int64_t for_risk = 0;   // of them kept until the end, to look for a plan of less risk
  bool any_that_fits = false;  // end with the first
  std::function<void(std::int64_t simulated, double better)> progress;  // may be empty
  std::function<bool()> stop;                                           // as SearchOptions::stop
  double faster_than = 0;  // seconds per sequence of what is known to fit; 0: nothing is
};

[[nodiscard]] Improved improve(const Space&, const std::vector<Design>& starts, const ImproveOptions&, Scorer&,
                               Admission&);

}  // namespace fsdp
