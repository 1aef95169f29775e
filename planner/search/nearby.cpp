#include "planner/search/nearby.h"

#include <algorithm>
#include <utility>

#include "planner/search/admission.h"
#include "planner/search/improve.h"
#include "planner/search/scorer.h"

namespace fsdp {
namespace {

double seconds_per_sequence(const Candidate& c) {
  return c.score.step.count() / static_cast<double>(c.plan.sequences_per_rank());
}

std::int64_t never_resharded(const ShardingPlan& plan) {
  return std::count_if(plan.units.begin(), plan.units.end(),
                       [](const Unit& u) { return u.reshard_after_forward == Reshard::no; });
}

}  // namespace

std::optional<Design> design_of(const ShardingPlan& plan, const Space& s) {
  if (plan.micro_batches.empty()) return std::nullopt;
  Design d = first_design(s);
  d.batch = {plan.micro_batches.front(), static_cast<std::int64_t>(plan.micro_batches.size())};
  d.replicate = plan.replicate();
  d.grad_sync = plan.grad_sync;
  d.loss_chunks = plan.loss_chunks;
  d.forward_prefetch = plan.forward_prefetch;
  d.backward_prefetch = plan.backward_prefetch;
  d.reduce_scatter_buffers = plan.reduce_scatter_buffers;
  d.separate_reduce_scatter = plan.separate_reduce_scatter;
  const auto any = [&](auto&& chosen) { return std::any_of(plan.units.begin(), plan.units.end(), chosen); };
  d.kept_between = any([](const Unit& u) { return !u.reshard_after_backward; });
  d.embedding_once = any([](const Unit& u) { return !u.unshard_in_backward; });
  if (s.ranks % d.replicate != 0) return std::nullopt;
  for (d.grouping = 0; d.grouping < s.groupings.size(); ++d.grouping) {
    if (s.groupings[d.grouping].wrap != plan.wrap) continue;
    for (const Reshard reshard : s.reshards) {
      d.reshard = reshard;
      // Each unit kept is one that is not resharded, and was not before or was.
      d.kept = 0;
      const std::int64_t without = never_resharded(plan_of(d, s, "none")), with = never_resharded(plan);
      const std::int64_t most = s.kept_free ? with : 0;
      for (d.kept = std::max<std::int64_t>(0, with - without); d.kept <= most; ++d.kept)
        if (plan_of(d, s, "none").units == plan.units) return d;
    }
  }
  return std::nullopt;
}

Nearby search_near(const ShardingPlan& plan, const std::string& label, const ModelGraph& model,
                   const ClusterSpec& cluster, const Implementation& impl, const SearchOptions& o,
                   const ScoreFunction& score) {
  Nearby found;
  Admission admission(model, o, impl);
  Scorer scorer(o, score, 0);
  if (admission.is_legal(plan)) {
    found.same = Candidate{plan, scorer.score_of(plan), label, {}, false};
    found.same->score = scorer.exact_score_of(plan, found.same->score);
    found.simulated = 1;
  }
  if (o.effort == Effort::uniform) return found;
  const Space space = space_of(model, cluster, o);
  const std::optional<Design> design = design_of(plan, space);
  if (!design) return found;
  const bool fits = found.same && found.same->score.verdict == Verdict::fits;
  ImproveOptions options;
  options.memory_limit = o.memory_limit;
  options.most_simulations = std::min(o.most_simulations, kNearbySimulations);
  options.for_risk = options.most_simulations / 4;
  options.stop = o.stop;
  options.faster_than = fits ? seconds_per_sequence(*found.same) : 0;
  Improved improved = improve(space, {*design}, options, scorer, admission);
  found.simulated += improved.simulations;
  if (!improved.best) return found;
  FittedPlan& best = *improved.best;
  best.score = scorer.exact_score_of(best.plan, best.score);
  Candidate better{best.plan, best.score, label_of(best.design, space, best.checkpointing), {}, false};
  if (better.score.verdict == Verdict::fits && better.plan != plan &&
      (!fits || seconds_per_sequence(better) < seconds_per_sequence(*found.same)))
    found.better = std::move(better);
  return found;
}

}  // namespace fsdp
