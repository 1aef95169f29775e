// The search. Every combination of what was left open is an option; a floor on its memory rules many out without a score, and so
// does a smaller micro-batch of the same kind that did not fit. The rest are scored, best first by `better`.
#include "planner/search.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/error.h"
#include "planner/search/candidates.h"
#include "planner/search/memory_floor.h"
#include "planner/search/rivals.h"

namespace fsdp {

namespace {

constexpr std::size_t kRivals = 5;

// Options that differ only in their micro-batch.
bool same_but_batch(const Choice& a, const Choice& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (i != static_cast<std::size_t>(Axis::batch) && a[i] != b[i]) return false;
  return true;
}

// Memory grows with the micro-batch as long as both steps accumulate gradients, or neither does.
bool needs_no_less(const Option& larger, const Option& smaller) {
  return same_but_batch(larger.choice, smaller.choice) && larger.batch.micro_batch >= smaller.batch.micro_batch &&
         (larger.batch.grad_accum > 1) == (smaller.batch.grad_accum > 1);
}

bool is_legal(const ShardingPlan& plan, const ModelGraph& model) {
  try {
    check(plan, model);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// Legal options with their memory floors. When none is legal the rule that the first one breaks is the error.
std::vector<Judged> judge_floors(const ModelGraph& model, const ClusterSpec& cluster, const Implementation& impl, const SearchOptions& o) {
  std::vector<Option> all = options(model, cluster, o);
  std::vector<Judged> judged;
  for (Option& option : all) {
    if (!is_legal(option.plan, model)) continue;
    const Bytes floor = memory_lower_bound(model, option.plan, impl) + cluster.fixed_memory;
    judged.push_back({std::move(option), floor, std::nullopt});
  }
  if (judged.empty()) check(all.at(0).plan, model);
  return judged;
}

class Scorer {
 public:
  Scorer(const SearchOptions& options, const ScoreFunction& score, std::int64_t total) : options_(options), score_(score), total_(total) {}

  void score(Judged& j) {
    if (j.score) return;
    j.score = score_(j.option.plan);
    advance();
  }
  void advance() {
    if (options_.progress && done_ < total_) options_.progress(++done_, total_);
  }

 private:
  const SearchOptions& options_;
  const ScoreFunction& score_;
  std::int64_t total_ = 0, done_ = 0;
};

// Micro-batches ascend fastest, so what did not fit comes before what is larger.
void score_all(std::vector<Judged>& all, Bytes limit, Scorer& scorer) {
  const Option* too_large = nullptr;
  for (Judged& j : all) {
    const bool hopeless = j.floor > limit || (too_large && needs_no_less(j.option, *too_large));
    if (hopeless) {
      scorer.advance();
      continue;
    }
    scorer.score(j);
    if (j.score->verdict == Verdict::does_not_fit) too_large = &j.option;
  }
}

Candidate candidate(const Judged& j) { return {j.option.plan, j.score.value_or(Score{}), j.option.label, "", j.option.naive}; }

// The least that anything needed: a replayed peak where there is one, a floor otherwise.
std::string nothing_fits(const ModelGraph& model, const Implementation& impl, const std::vector<Judged>& all, Bytes limit) {
  const auto need = [](const Judged& j) { return j.score ? j.score->peak_total : j.floor; };
  const auto least = std::min_element(all.begin(), all.end(), [&](const Judged& a, const Judged& b) { return need(a) < need(b); });
  return fmt::format("nothing fits in {}: the least that any of {} plans needs is {}{} ({}), of which {}", human(limit), all.size(),
                     least->score ? "" : "at least ", human(need(*least)), least->option.label,
                     describe(memory_floor(model, least->option.plan, impl)));
}

// The naive plan is scored in any case; it is in `all` unless the user fixed otherwise.
Candidate naive_candidate(std::vector<Judged>& all, const ModelGraph& model, const ClusterSpec& cluster, const SearchOptions& o, Scorer& scorer) {
  for (Judged& j : all) {
    if (!j.option.naive) continue;
    scorer.score(j);
    return candidate(j);
  }
  Judged outside{naive_option(model, cluster, o), Bytes(0), std::nullopt};
  if (is_legal(outside.option.plan, model)) scorer.score(outside);
  return candidate(outside);
}

}  // namespace

std::string_view name(Verdict v) {
  switch (v) {
    case Verdict::fits: return "fits";
    case Verdict::tight: return "tight";
    case Verdict::does_not_fit: break;
  }
  return "does not fit";
}

PlanResult search(const ModelGraph& model, const ClusterSpec& cluster, const Implementation& impl, const SearchOptions& o,
                  const ScoreFunction& score) {
  if (o.ranks < 1) throw InputError("--gpus", fmt::format("there are {} GPUs", o.ranks), "use at least 1");
  PlanResult result;
  result.searched = describe_search(o);
  std::vector<Judged> all = judge_floors(model, cluster, impl, o);
  Scorer scorer(o, score, static_cast<std::int64_t>(all.size()));
  result.considered = static_cast<std::int64_t>(all.size());
  score_all(all, o.memory_limit, scorer);
  result.naive = naive_candidate(all, model, cluster, o, scorer);
  const auto first = std::min_element(all.begin(), all.end(), better);
  const auto best = static_cast<std::size_t>(first - all.begin());
  if (!first->score || first->score->verdict == Verdict::does_not_fit) {
    result.why_none = nothing_fits(model, impl, all, o.memory_limit);
  } else {
    result.best = candidate(*first);
    for (const std::size_t i : rivals(all, best, kRivals)) {
      scorer.score(all[i]);                  // also if a smaller sibling had ruled it out: what it would need is the point
      result.rivals.push_back(candidate(all[i]));
      result.rivals.back().why_lost = why_lost(all[i], all[best], o.memory_limit);
    }
  }
  result.scored = std::count_if(all.begin(), all.end(), [](const Judged& j) { return j.score.has_value(); });
  result.pruned = result.considered - result.scored;
  return result;
}

}  // namespace fsdp
