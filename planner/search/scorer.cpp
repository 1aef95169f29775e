#include "planner/search/scorer.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace fsdp {

namespace {

ShardingPlan shortened(const ShardingPlan& plan, std::int64_t micro_batches) {
  ShardingPlan p = plan;
  p.micro_batches.resize(static_cast<std::size_t>(micro_batches));
  return p;
}

StepTime time_in(const Score& s) { return {s.step, s.where}; }

Seconds extended(Seconds shorter, Seconds longer, double more) { return longer + (longer - shorter) * more; }

// The score of `more` micro-batches beyond those of `longer`, which has one more than `shorter`.
Score extrapolated(const StepTime& shorter, const Score& longer, double more) {
  Score s = longer;
  s.step = extended(shorter.step, longer.step, more);
  for (const BreakdownPart& part : kBreakdownParts)
    s.where.*part.member = extended(shorter.where.*part.member, longer.where.*part.member, more);
  return s;
}

}  // namespace

namespace {

class Known {
 public:
  explicit Known(ScoreFunction score) : score_(std::move(score)) {}

  Score score(const ShardingPlan& plan) {
    Scores& known = known_[plan.digest()];
    if (!known.full) known.full = known.fit && known.fit->verdict == Verdict::fits ? *known.fit : score_(plan);
    return *known.full;
  }
  Score fit(const ShardingPlan& plan) {
    Scores& known = known_[plan.digest()];
    if (known.full) return *known.full;
    if (!known.fit) known.fit = score_.fit(plan);
    return *known.fit;
  }

 private:
  struct Scores {
    std::optional<Score> full, fit;
  };
  ScoreFunction score_;
  std::map<std::string, Scores> known_;  // by the plan's digest
};

template <class ScoreOf>
Score score_with(const ScoreOf& score, const ShardingPlan& plan, const TimeFunction& timed) {
  const auto n = static_cast<std::int64_t>(plan.micro_batches.size());
  if (n <= kRepresentative) return score(plan);
  const ShardingPlan one_less = shortened(plan, kRepresentative - 1);
  const StepTime shorter = timed ? timed(one_less) : time_in(score(one_less));
  return extrapolated(shorter, score(shortened(plan, kRepresentative)), static_cast<double>(n - kRepresentative));
}

}  // namespace

ScoreFunction remembering(ScoreFunction score) {
  const auto known = std::make_shared<Known>(std::move(score));
  return {[known](const ShardingPlan& p) { return known->score(p); },
          [known](const ShardingPlan& p) { return known->fit(p); }};
}

Score Scorer::score_of(const ShardingPlan& plan) const { return score_with(score_, plan, options_.timed); }

Score Scorer::fit_of(const ShardingPlan& plan) const {
  return score_with([this](const ShardingPlan& p) { return score_.fit(p); }, plan, options_.timed);
}

Score Scorer::exact_score_of(const ShardingPlan& plan, const Score& known) const {
  if (plan.micro_batches.size() <= kRepresentative) return known;
  if (!options_.timed) return score_(plan);
  Score exact = known;
  const StepTime whole = options_.timed(plan);
  exact.step = whole.step;
  exact.where = whole.where;
  return exact;
}

void Scorer::score(Judged& j) {
  if (j.score) return;
  j.score = score_of(j.option.plan);
  advance();
}

void Scorer::score_exactly(Judged& j) { j.score = exact_score_of(j.option.plan, *j.score); }

void Scorer::advance() {
  if (options_.progress && done_ < total_) options_.progress(++done_, total_);
}

}  // namespace fsdp
