#include "planner/search/scorer.h"

namespace fsdp {

namespace {

ShardingPlan shortened(const ShardingPlan& plan, std::int64_t micro_batches) {
  ShardingPlan p = plan;
  p.micro_batches.resize(static_cast<std::size_t>(micro_batches));
  return p;
}

Seconds extended(Seconds shorter, Seconds longer, double more) { return longer + (longer - shorter) * more; }

// The score of `more` micro-batches beyond those of `longer`, which has one more than `shorter`.
Score extrapolated(const Score& shorter, const Score& longer, double more) {
  Score s = longer;
  s.step = extended(shorter.step, longer.step, more);
  for (const BreakdownPart& part : kBreakdownParts)
    s.where.*part.member = extended(shorter.where.*part.member, longer.where.*part.member, more);
  return s;
}

}  // namespace

Score Scorer::score_of(const ShardingPlan& plan) const {
  const auto n = static_cast<std::int64_t>(plan.micro_batches.size());
  if (n <= kRepresentative) return score_(plan);
  const Score shorter = score_(shortened(plan, kRepresentative - 1)), longer = score_(shortened(plan, kRepresentative));
  return extrapolated(shorter, longer, static_cast<double>(n - kRepresentative));
}

void Scorer::score(Judged& j) {
  if (j.score) return;
  j.score = score_of(j.option.plan);
  advance();
}

void Scorer::score_exactly(Judged& j) {
  if (j.option.batch.grad_accum > kRepresentative) j.score = score_(j.option.plan);
}

void Scorer::advance() {
  if (options_.progress && done_ < total_) options_.progress(++done_, total_);
}

}  // namespace fsdp
