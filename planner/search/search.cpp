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
#include "planner/search/admission.h"
#include "planner/search/candidates.h"
#include "planner/search/improve.h"
#include "planner/search/rivals.h"
#include "planner/search/scorer.h"

namespace fsdp {

namespace {

constexpr std::size_t kRivals = 5;
constexpr int kLeastTries = 8;          // simulations to find the plan that needs least, where none fits
constexpr double kEquallyFast = 1.001;  // predictions do not resolve less

bool fits(const Judged& j) { return j.score && j.score->verdict == Verdict::fits; }

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

// Where every option is refused: of the errors the shortest, since a rule lists all that it has against a plan.
[[noreturn]] void refuse(const std::vector<Option>& all, Admission& admission) {
  std::optional<InputError> least;
  for (const Option& option : all) {
    try {
      admission.check(option.plan);
      (void)admission.floor(option.plan);
    } catch (const InputError& e) {
      if (!least || e.problem().size() < least->problem().size()) least = e;
    }
  }
  if (!least) throw InternalError("a search has no options");
  throw InputError(*least);
}

// Options with their memory floors: legal ones, and those that cannot fit. When there are none, that is an error.
std::vector<Judged> judge_floors(const std::vector<Option>& all, const ClusterSpec& cluster, Admission& admission,
                                 Bytes limit) {
  std::vector<Judged> judged;
  for (const Option& option : all) {
    try {
      const Bytes floor = Bytes(admission.floor(option.plan).bytes()) + cluster.fixed_memory;
      if (floor <= limit) admission.check(option.plan);
      judged.push_back({option, floor, std::nullopt});
    } catch (const InputError&) {
    }
  }
  if (judged.empty()) refuse(all, admission);
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
    return fits(b) && same_but(Axis::checkpointing, j.option.choice, b.option.choice) &&
           recomputes_no_more(b.option.plan, j.option.plan);
  });
}

bool stopped(const SearchOptions& o) { return o.stop && o.stop(); }

// Micro-batches ascend fastest, so what did not fit comes before what is larger. Where any plan will do that fits, the
// one whose floor is lowest is tried before all others.
void score_all(std::vector<Judged>& all, const SearchOptions& o, Scorer& scorer) {
  const Bytes limit = o.memory_limit;
  if (o.any_that_fits) {
    Judged& lowest = *std::min_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.floor < b.floor; });
    if (lowest.floor <= limit) scorer.score(lowest);
    if (fits(lowest)) return;
  }
  const Option* too_large = nullptr;
  for (Judged& j : all) {
    if (stopped(o)) return;
    const std::span<const Judged> before(all.data(), static_cast<std::size_t>(&j - all.data()));
    const bool hopeless = j.floor > limit || (too_large && needs_no_less(j.option, *too_large));
    if (hopeless || recomputes_for_nothing(j, before)) {
      scorer.advance();
      continue;
    }
    scorer.score(j);
    if (j.score->verdict == Verdict::does_not_fit) too_large = &j.option;
    if (o.any_that_fits && fits(j)) return;
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

// When nothing fits: the plan that needs least is sought among those that floors had ruled out. At most `tries` are
// simulated, and at least one plan has been. Only an answer in words says how many plans are legal; without, no more
// are checked than it takes to find that one.
void nothing_fits(Admission& admission, const ClusterSpec& cluster, std::vector<Judged>& all, Bytes limit, int tries,
                  bool in_words, Scorer& scorer, PlanResult& result) {
  std::vector<Option> before;
  for (const Judged& j : all) before.push_back(j.option);
  const auto illegal = [&](const Judged& j) { return !j.score && !admission.is_legal(j.option.plan); };
  if (in_words) std::erase_if(all, illegal);
  const auto least_open = [&] {
    Judged* open = least_of(all, false);
    for (; open && !in_words && illegal(*open); open = least_of(all, false))
      all.erase(all.begin() + (open - all.data()));
    return open;
  };
  Judged* open = least_open();
  if (all.empty()) refuse(before, admission);
  for (; open; --tries, open = least_open()) {
    const Judged* best = least_of(all, true);
    if (best && (tries <= 0 || need(*best, all) <= need(*open, all))) break;
    scorer.score(*open);
  }
  const Judged& least = *least_of(all, true);
  const Bytes found = need(least, all);
  result.least = candidate(least);
  result.least_bound = open ? std::min(found, need(*open, all)) : found;
  if (!in_words) return;
  const bool exact = result.least_bound == found;
  const auto simulated = std::count_if(all.begin(), all.end(), [](const Judged& j) { return j.score.has_value(); });
  result.why_none =
      fmt::format("nothing fits in {}: the least that any of {} plans reserves is {} ({}), of which {}", human(limit),
                  exact ? std::to_string(all.size()) : fmt::format("{} simulated", simulated), human(found),
                  least.option.label, describe(admission.floor(least.option.plan)));
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
Candidate naive_outside(const ModelGraph& model, const ClusterSpec& cluster, const SearchOptions& o,
                        Admission& admission, Scorer& scorer) {
  Judged outside{naive_option(model, cluster, o), Bytes(0), std::nullopt};
  if (admission.is_legal(outside.option.plan)) scorer.score(outside);
  return candidate(outside);
}

// Best and naive are held against each other by exact scores: only then may the one beat the other.
std::size_t choose_exactly(std::vector<Judged>& all, Judged* naive, const SearchOptions& o, Scorer& scorer) {
  std::size_t best = choose(all);
  if (o.any_that_fits) return best;
  if (!all[best].score || all[best].score->verdict == Verdict::does_not_fit) return best;
  scorer.score_exactly(all[best]);
  if (naive == nullptr || naive == &all[best]) return best;
  scorer.score_exactly(*naive);
  return better(*naive, all[best]) ? static_cast<std::size_t>(naive - all.data()) : best;
}

// The designs from which the joint search starts: the best plan, and the best over each other mesh.
std::vector<Design> starts(const Space& space, const std::vector<Judged>& all, std::size_t best) {
  constexpr std::size_t kMost = 3;
  constexpr std::int64_t kPartsToStart = 8;
  std::vector<const Judged*> chosen = {&all[best]};
  std::vector<const Judged*> by_worth;
  for (const Judged& j : all)
    if (j.score) by_worth.push_back(&j);
  std::stable_sort(by_worth.begin(), by_worth.end(), [](const Judged* a, const Judged* b) { return better(*a, *b); });
  for (const Judged* j : by_worth) {
    const auto same_mesh = [&](const Judged* c) { return c->option.plan.replicate() == j->option.plan.replicate(); };
    if (chosen.size() < kMost && std::none_of(chosen.begin(), chosen.end(), same_mesh)) chosen.push_back(j);
  }
  std::vector<Design> designs;
  for (const Judged* j : chosen) {
    Design d = first_design(space);
    for (std::size_t g = 0; g < space.groupings.size(); ++g)
      if (space.groupings[g].wrap == j->option.plan.wrap) d.grouping = g;
    d.reshard = j->option.reshard;
    d.batch = j->option.batch;
    d.replicate = j->option.plan.replicate();
    // A loss in parts costs little and leaves room for more sequences at once, which pays only together.
    const auto parts = std::find(space.chunks.begin(), space.chunks.end(), kPartsToStart);
    if (parts != space.chunks.end()) d.loss_chunks = *parts;
    designs.push_back(d);
  }
  return designs;
}

Judged judged(const FittedPlan& f, const Space& space) {
  Judged j{{}, Bytes(0), f.score};
  j.option.plan = f.plan;
  j.option.label = label_of(f.design, space, f.checkpointing);
  j.option.batch = f.design.batch;
  return j;
}

Candidate riskier(const FittedPlan& fastest, const FittedPlan& best, const Space& space) {
  Candidate c{fastest.plan, fastest.score, label_of(fastest.design, space, fastest.checkpointing), {}, false};
  const double faster = best.seconds_per_sequence() / fastest.seconds_per_sequence() - 1;
  c.why_lost.clause = fmt::format("{:.1f}% faster, but out of memory {:.0f}% (chosen: {:.0f}%)", 100 * faster,
                                  100 * fastest.score.out_of_memory, 100 * best.score.out_of_memory);
  return c;
}

// What the joint search finds beyond the best of the options; nullopt: nothing better.
std::optional<Judged> improved(const ModelGraph& model, const ClusterSpec& cluster, Admission& admission,
                               const SearchOptions& o, const std::vector<Judged>& all, std::size_t best, Scorer& scorer,
                               PlanResult& result) {
  const Judged& known = all[best];
  const bool known_fits = fits(known);
  const Space space = space_of(model, cluster, o);
  ImproveOptions options;
  options.memory_limit = o.memory_limit;
  options.most_simulations = o.most_simulations;
  options.any_that_fits = o.any_that_fits;
  options.progress = o.joint_progress;
  options.faster_than = known_fits ? known.seconds_per_sequence() : 0;
  options.stop = o.stop;
  Improved found = improve(space, starts(space, all, best), options, scorer, admission);
  result.simulated_jointly = found.simulations;
  result.exhausted = found.exhausted;
  if (!found.best) return std::nullopt;
  found.best->score = scorer.exact_score_of(found.best->plan, found.best->score);
  const Judged j = judged(*found.best, space);
  const bool worth = !known_fits || j.seconds_per_sequence() * kEquallyFast < known.seconds_per_sequence();
  if (!fits(j) || !worth) return std::nullopt;
  if (found.fastest) {
    found.fastest->score = scorer.exact_score_of(found.fastest->plan, found.fastest->score);
    if (found.fastest->seconds_per_sequence() < found.best->seconds_per_sequence())
      result.fastest = riskier(*found.fastest, *found.best, space);
  }
  return j;
}

}  // namespace

PlanResult search(const ModelGraph& model, const ClusterSpec& cluster, const Implementation& impl,
                  const SearchOptions& o, const ScoreFunction& score) {
  if (o.ranks < 1) throw InputError(setting("gpus"), fmt::format("there are {} GPUs", o.ranks), "use at least 1");
  PlanResult result;
  result.searched = describe_search(o);
  Admission admission(model, o, impl);
  std::vector<Judged> all = judge_floors(options(model, cluster, o), cluster, admission, o.memory_limit);
  Scorer scorer(o, score, static_cast<std::int64_t>(all.size()));
  result.considered = static_cast<std::int64_t>(all.size());
  score_all(all, o, scorer);
  const auto found = std::find_if(all.begin(), all.end(), [](const Judged& j) { return j.option.naive; });
  const bool listed = found != all.end() && (found->score || admission.is_legal(found->option.plan));
  Judged* const naive = listed ? &*found : nullptr;
  if (naive) scorer.score(*naive);
  const std::size_t best = choose_exactly(all, naive, o, scorer);
  result.naive = naive ? candidate(*naive) : naive_outside(model, cluster, o, admission, scorer);
  const bool some_fit = all[best].score && all[best].score->verdict != Verdict::does_not_fit;
  std::optional<Judged> joint;
  if (o.effort == Effort::joint) joint = improved(model, cluster, admission, o, all, best, scorer, result);
  const Judged& chosen = joint ? *joint : all[best];
  const auto beaten = [&](const Judged& j) {
    Candidate c = candidate(j);
    c.why_lost = why_lost(j, chosen, o.memory_limit);
    return c;
  };
  if (!some_fit && !joint) {
    nothing_fits(admission, cluster, all, o.memory_limit, o.any_that_fits ? 1 : kLeastTries, !o.any_that_fits, scorer,
                 result);
  } else {
    result.best = candidate(chosen);
    if (const Judged* calm = without_retries(all, chosen)) result.without_retries = beaten(*calm);
    if (joint && some_fit) result.uniform = beaten(all[best]);
    for (const std::size_t i : rivals(all, best, kRivals)) {
      if (!all[i].score && !admission.is_legal(all[i].option.plan)) continue;
      scorer.score(all[i]);  // also if a smaller sibling had ruled it out: what it would need is the point
      result.rivals.push_back(beaten(all[i]));
    }
  }
  if (joint) result.scored_plans.push_back(*result.best);
  for (const Judged& j : all)
    if (j.score) result.scored_plans.push_back(result.best && &j != &chosen ? beaten(j) : candidate(j));
  result.scored = static_cast<std::int64_t>(
      std::count_if(all.begin(), all.end(), [](const Judged& j) { return j.score.has_value(); }));
  result.pruned = result.considered - result.scored;
  result.stopped = stopped(o);
  return result;
}

}  // namespace fsdp
