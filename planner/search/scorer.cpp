#include "planner/search/scorer.h"

#include <map>
#include <memory>
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

ScoreFunction remembering(ScoreFunction score) {
  return [score = std::move(score), known = std::make_shared<std::map<std::string, Score>>()](const ShardingPlan& p) {
    const std::string digest = p.digest();
    if (const auto found = known->find(digest); found != known->end()) return found->second;
    return known->emplace(digest, score(p)).first->second;
  };
}

Score Scorer::score_of(const ShardingPlan& plan) const {
  const auto n = static_cast<std::int64_t>(plan.micro_batches.size());
  if (n <= kRepresentative) return score_(plan);
  const ShardingPlan one_less = shortened(plan, kRepresentative - 1);
  const StepTime shorter = options_.timed ? options_.timed(one_less) : time_in(score_(one_less));
  return extrapolated(shorter, score_(shortened(plan, kRepresentative)), static_cast<double>(n - kRepresentative));
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
