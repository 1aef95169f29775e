// The search. Every combination of what was left open is an option. Three rules rule options out without a score: a
// floor on their memory, a smaller micro-batch of the same kind that did not fit, and a plan that fits and recomputes
// less but is otherwise equal (recomputing adds work). The rest are scored; `better` picks, and of plans that are
// equally fast the smallest.
#include "planner/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "models/input/error.h"
#include "planner/search/candidates.h"
#include "planner/search/memory_floor.h"
#include "planner/search/rivals.h"
#include "planner/search/scorer.h"

namespace fsdp {

namespace {

constexpr std::size_t kRivals = 5;
constexpr int kLeastTries = 8;          // simulations to find the plan that needs least, where none fits
constexpr double kEquallyFast = 1.001;  // predictions do not resolve less

bool same_but(Axis axis, const Choice& a, const Choice& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (i != static_cast<std::size_t>(axis) && a[i] != b[i]) return false;
  return true;
}

// Memory grows with the micro-batch as long as both steps accumulate gradients, or neither does.
bool needs_no_less(const Option& larger, const Option& smaller) {
  return same_but(Axis::batch, larger.choice, smaller.choice) &&
         larger.batch.micro_batch >= smaller.batch.micro_batch &&
         (larger.batch.grad_accum > 1) == (smaller.batch.grad_accum > 1);
}

// The best of the tight plans whose allocator need not stop in each step; null: `best` is one, or there is none.
const Judged* without_retries(const std::vector<Judged>& all, const Judged& best) {
  if (best.score->verdict != Verdict::tight || best.score->retries == 0) return nullptr;
  const Judged* calm = nullptr;
  for (const Judged& j : all)
    if (j.score && j.score->verdict == Verdict::tight && j.score->retries == 0 && (calm == nullptr || better(j, *calm)))
      calm = &j;
  return calm;
}

bool is_legal(const ShardingPlan& plan, const ModelGraph& model) {
  try {
    check(plan, model);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// Throws InputError for a plan that breaks a rule, or whose activations are beyond all limits.
Bytes floor_of_legal(const ShardingPlan& plan, const ModelGraph& model, const Implementation& impl) {
  check(plan, model);
  return memory_lower_bound(model, plan, impl);
}

// Legal options with their memory floors. When none is legal the rule that the first one breaks is the error.
std::vector<Judged> judge_floors(const ModelGraph& model, const ClusterSpec& cluster, const Implementation& impl,
                                 const SearchOptions& o) {
  std::vector<Option> all = options(model, cluster, o);
  std::vector<Judged> judged;
  for (Option& option : all) {
    try {
      const Bytes floor = floor_of_legal(option.plan, model, impl) + cluster.fixed_memory;
      judged.push_back({std::move(option), floor, std::nullopt});
    } catch (const InputError&) {
    }
  }
  if (judged.empty()) (void)floor_of_legal(all.at(0).plan, model, impl);
  return judged;
}

// Does `a` recompute nothing that `b` does not? Parts of every block and every second block whole are not comparable.
bool recomputes_no_more(const ShardingPlan& a, const ShardingPlan& b) {
  if (a.checkpointed.empty()) return true;
  const auto held = [&](const std::string& m) {
    return std::find(b.checkpointed.begin(), b.checkpointed.end(), m) != b.checkpointed.end();
  };
  return b.checkpoint_policy == CheckpointPolicy::full &&
         std::all_of(a.checkpointed.begin(), a.checkpointed.end(), held);
}

// Does one of these, all listed before `j`, fit with less recomputation?
bool recomputes_for_nothing(const Judged& j, std::span<const Judged> before) {
  return std::any_of(before.begin(), before.end(), [&](const Judged& b) {
    return b.score && b.score->verdict == Verdict::fits &&
           same_but(Axis::checkpointing, j.option.choice, b.option.choice) &&
           recomputes_no_more(b.option.plan, j.option.plan);
  });
}

// Micro-batches ascend fastest, so what did not fit comes before what is larger.
void score_all(std::vector<Judged>& all, Bytes limit, Scorer& scorer) {
  const Option* too_large = nullptr;
  for (Judged& j : all) {
    const std::span<const Judged> before(all.data(), static_cast<std::size_t>(&j - all.data()));
    const bool hopeless = j.floor > limit || (too_large && needs_no_less(j.option, *too_large));
    if (hopeless || recomputes_for_nothing(j, before)) {
      scorer.advance();
      continue;
    }
    scorer.score(j);
    if (j.score->verdict == Verdict::does_not_fit) too_large = &j.option;
  }
}

// Of plans with the verdict of the first by `better` that are as fast as it, the one that needs least; never one slower
// than the naive plan. `all` is not empty.
std::size_t choose(const std::vector<Judged>& all) {
  auto best = std::min_element(all.begin(), all.end(), better);
  if (!best->score) return static_cast<std::size_t>(best - all.begin());
  double slowest = kEquallyFast * best->seconds_per_sequence();
  const Verdict verdict = best->score->verdict;
  for (const Judged& j : all)
    if (j.option.naive && j.score && j.score->verdict == verdict) slowest = std::min(slowest, j.seconds_per_sequence());
  for (auto j = all.begin(); j != all.end(); ++j)
    if (j->score && j->score->verdict == verdict && j->seconds_per_sequence() <= slowest &&
        j->score->peak_total < best->score->peak_total)
      best = j;
  return static_cast<std::size_t>(best - all.begin());
}

Candidate candidate(const Judged& j) {
  return {j.option.plan, j.score.value_or(Score{}), j.option.label, {}, j.option.naive};
}

// What an option needs at least: its replayed peak, or else a floor, which is no less than what a smaller micro-batch
// of the same kind was found to need.
Bytes need(const Judged& j, const std::vector<Judged>& all) {
  if (j.score) return j.score->peak_total;
  Bytes least = j.floor;
  for (const Judged& smaller : all)
    if (smaller.score && needs_no_less(j.option, smaller.option)) least = std::max(least, smaller.score->peak_total);
  return least;
}

// Of those with a score, or of those without one, the one that needs least.
Judged* least_of(std::vector<Judged>& all, bool scored) {
  Judged* least = nullptr;
  for (Judged& j : all)
    if (j.score.has_value() == scored && (least == nullptr || need(j, all) < need(*least, all))) least = &j;
  return least;
}

// When nothing fits: the plan that needs least is sought among those that floors had ruled out.
void nothing_fits(const ModelGraph& model, const ClusterSpec& cluster, const Implementation& impl,
                  std::vector<Judged>& all, Bytes limit, Scorer& scorer, PlanResult& result) {
  Judged* open = least_of(all, false);
  for (int tries = 0; tries < kLeastTries && open; ++tries, open = least_of(all, false)) {
    const Judged* best = least_of(all, true);
    if (best && need(*best, all) <= need(*open, all)) break;
    scorer.score(*open);
  }
  const Judged& least = *least_of(all, true);
  const Bytes found = need(least, all);
  result.least = candidate(least);
  result.least_bound = open ? std::min(found, need(*open, all)) : found;
  const bool exact = result.least_bound == found;
  const auto simulated = std::count_if(all.begin(), all.end(), [](const Judged& j) { return j.score.has_value(); });
  result.why_none =
      fmt::format("nothing fits in {}: the least that any of {} plans reserves is {} ({}), of which {}", human(limit),
                  exact ? std::to_string(all.size()) : fmt::format("{} simulated", simulated), human(found),
                  least.option.label, describe(memory_floor(model, least.option.plan, impl)));
  if (least.score && cluster.host_memory) {
    const Bytes node(least.score->pinned.count() * std::min(cluster.gpus, cluster.gpus_per_node));
    if (node > *cluster.host_memory) {
      result.why_none = fmt::format("what is offloaded needs {} of host memory on each node, which has {} ({})",
                                    human(node), human(*cluster.host_memory), least.option.label);
      return;
    }
  }
  if (!exact)
    result.why_none += fmt::format("; a lower bound for all {} plans, reached by none of those, is {}", all.size(),
                                   human(result.least_bound));
}

// The naive plan, when the user fixed otherwise and it is not among the options.
Candidate naive_outside(const ModelGraph& model, const ClusterSpec& cluster, const SearchOptions& o, Scorer& scorer) {
  Judged outside{naive_option(model, cluster, o), Bytes(0), std::nullopt};
  if (is_legal(outside.option.plan, model)) scorer.score(outside);
  return candidate(outside);
}

// Best and naive are held against each other by exact scores: only then may the one beat the other.
std::size_t choose_exactly(std::vector<Judged>& all, Judged* naive, Scorer& scorer) {
  std::size_t best = choose(all);
  if (!all[best].score || all[best].score->verdict == Verdict::does_not_fit) return best;
  scorer.score_exactly(all[best]);
  if (naive == nullptr || naive == &all[best]) return best;
  scorer.score_exactly(*naive);
  return better(*naive, all[best]) ? static_cast<std::size_t>(naive - all.data()) : best;
}

}  // namespace

PlanResult search(const ModelGraph& model, const ClusterSpec& cluster, const Implementation& impl,
                  const SearchOptions& o, const ScoreFunction& score) {
  if (o.ranks < 1) throw InputError(setting("gpus"), fmt::format("there are {} GPUs", o.ranks), "use at least 1");
  PlanResult result;
  result.searched = describe_search(o);
  std::vector<Judged> all = judge_floors(model, cluster, impl, o);
  Scorer scorer(o, score, static_cast<std::int64_t>(all.size()));
  result.considered = static_cast<std::int64_t>(all.size());
  score_all(all, o.memory_limit, scorer);
  const auto found = std::find_if(all.begin(), all.end(), [](const Judged& j) { return j.option.naive; });
  Judged* const naive = found == all.end() ? nullptr : &*found;
  if (naive) scorer.score(*naive);
  const std::size_t best = choose_exactly(all, naive, scorer);
  result.naive = naive ? candidate(*naive) : naive_outside(model, cluster, o, scorer);
  if (!all[best].score || all[best].score->verdict == Verdict::does_not_fit) {
    nothing_fits(model, cluster, impl, all, o.memory_limit, scorer, result);
  } else {
    result.best = candidate(all[best]);
    if (const Judged* calm = without_retries(all, all[best])) {
      result.without_retries = candidate(*calm);
      result.without_retries->why_lost = why_lost(*calm, all[best], o.memory_limit);
    }
    for (const std::size_t i : rivals(all, best, kRivals)) {
      scorer.score(all[i]);  // also if a smaller sibling had ruled it out: what it would need is the point
      result.rivals.push_back(candidate(all[i]));
      result.rivals.back().why_lost = why_lost(all[i], all[best], o.memory_limit);
    }
  }
  for (const Judged& j : all) {
    if (!j.score) continue;
    result.scored_plans.push_back(candidate(j));
    if (result.best && &j != &all[best]) result.scored_plans.back().why_lost = why_lost(j, all[best], o.memory_limit);
  }
  result.scored = static_cast<std::int64_t>(result.scored_plans.size());
  result.pruned = result.considered - result.scored;
  return result;
}

}  // namespace fsdp
