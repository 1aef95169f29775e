// Scores options through the caller's function, at a cost that does not grow with the number of micro-batches.
#pragma once

#include "planner/search/rivals.h"

namespace fsdp {

// Micro-batches of one size repeat the same work, so a step of n > 4 of them takes  t(4) + (n - 4) (t(4) - t(3))  and
// needs the memory of 4 (first, middle and last ones are among them). Shorter steps are scored as they are.
inline constexpr std::int64_t kRepresentative = 4;

// The same, asked once for each plan: what it was is remembered, for searches that meet again.
[[nodiscard]] ScoreFunction remembering(ScoreFunction);

class Scorer {
 public:
  Scorer(const SearchOptions& options, const ScoreFunction& score, std::int64_t total)
      : options_(options), score_(score), total_(total) {}

  [[nodiscard]] Score score_of(const ShardingPlan&) const;  // of a plan whose micro-batches are of one size
  [[nodiscard]] Score fit_of(const ShardingPlan&) const;    // the same, as ScoreFunction::fit
  void score(Judged&);                                      // unless it has been scored
  void score_exactly(Judged&);                              // the whole step, replacing an extrapolated score
  // The whole step, of a plan whose score_of is known.
  [[nodiscard]] Score exact_score_of(const ShardingPlan&, const Score& known) const;
  void advance();  // counts one more option as done and reports progress to the caller

 private:
  const SearchOptions& options_;
  const ScoreFunction& score_;
  std::int64_t total_ = 0, done_ = 0;
};

}  // namespace fsdp
