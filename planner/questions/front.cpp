#include "planner/questions/front.h"

#include <algorithm>
#include <map>
#include <string>

namespace fsdp {
namespace {

constexpr std::int64_t kMostSearches = 64;
constexpr std::int64_t kPartsOfLastStep = 4;  // how close to the least memory the front ends
constexpr double kEquallyFast = 1.001;        // predictions do not resolve less
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

double tokens_per_s(const Candidate& c) { return static_cast<double>(c.plan.tokens_per_step()) / c.score.step.count(); }

// Scores under the first limit, and from them those under less: what fits there needs no other answer.
class Scores {
 public:
  Scores(Bytes most, const ScoreFunction& score) : most_(most), score_(score) {}

  [[nodiscard]] Score under(Bytes limit, const ShardingPlan& plan) {
    const auto [found, fresh] = known_.try_emplace(plan.digest());
    if (fresh) found->second = score_(plan);
    Score s = found->second;
    // Within the first limit a plan that does not fit lacks something else, such as memory of the host.
    const bool lacks = s.verdict == Verdict::does_not_fit && s.peak_total <= most_;
    s.verdict = s.peak_total <= limit && !lacks ? Verdict::fits : Verdict::does_not_fit;
    return s;
  }
  [[nodiscard]] std::int64_t simulated() const { return static_cast<std::int64_t>(known_.size()); }

 private:
  Bytes most_;
  const ScoreFunction& score_;
  std::map<std::string, Score> known_;
};

// Of the plans that fit in `limit`, the one that needs least of those that are as fast as the fastest.
const Candidate* best_in(const std::vector<Candidate>& all, Bytes limit) {
  const auto in = [&](const Candidate& c) { return c.score.peak_total <= limit; };
  double fastest = 0;
  for (const Candidate& c : all)
    if (in(c)) fastest = std::max(fastest, tokens_per_s(c));
  const Candidate* best = nullptr;
  for (const Candidate& c : all)
    if (in(c) && tokens_per_s(c) * kEquallyFast >= fastest &&
        (best == nullptr || c.score.peak_total < best->score.peak_total))
      best = &c;
  return best;
}

void keep_what_fits(std::vector<Candidate>& all, const PlanResult& result) {
  const auto keep = [&](const Candidate& c) {
    if (c.score.step.count() > 0 && c.score.verdict == Verdict::fits) all.push_back(c);
  };
  if (result.best) keep(*result.best);
  for (const Candidate& c : result.scored_plans) keep(c);
}

}  // namespace

Front front_of(const FrontOptions& o, const SearchAt& search_at, const ScoreFunction& score) {
  Front front;
  Scores scores(o.most, score);
  std::vector<Candidate> all;
  std::vector<Bytes> limits;
  // The best plan in `limit`, of all that were found so far and by a search for it; nullptr: none.
  const auto best_at = [&](Bytes limit) {
    if (o.told) o.told(front.searches + 1, limit);
    ++front.searches;
    PlanResult found = search_at(limit, [&](const ShardingPlan& plan) { return scores.under(limit, plan); });
    front.stopped = front.stopped || found.stopped;
    keep_what_fits(all, found);
    limits.push_back(limit);
    const Candidate* const best = best_in(all, limit);
    if (best == nullptr && limits.size() == 1) front.none = std::move(found);
    return best;
  };
  const auto goes_on = [&] { return !front.stopped && front.searches < kMostSearches; };
  Bytes too_little(0),
      least = o.most + Bytes(1);  // of the limits: the largest that holds no plan; the last plan's peak
  for (Bytes limit = o.most; limit > Bytes(0) && front.searches < kMostSearches;) {
    const Candidate* const best = best_at(limit);
    if (best == nullptr) too_little = limit;
    if (best == nullptr || front.stopped) break;
    least = best->score.peak_total;
    limit = std::min(limit - o.step, least - Bytes(1));
  }
  // Between these two lies the end of the front.
  while (!all.empty() && goes_on() && least - too_little > Bytes(o.step.count() / kPartsOfLastStep)) {
    const Bytes between(too_little.count() + (least - too_little).count() / 2);
    const Candidate* const best = best_at(between);
    if (best == nullptr) too_little = between;
    else least = best->score.peak_total;
  }
  const auto needs_less = [](const Candidate& x, const Candidate& y) {
    return x.score.peak_total < y.score.peak_total;
  };
  // What needs least of all that were found ends it.
  while (!all.empty()) {
    const Bytes found = std::min_element(all.begin(), all.end(), needs_less)->score.peak_total;
    if (found >= least) break;
    if (goes_on()) (void)best_at(found);
    else limits.push_back(found);
    least = found;
  }
  front.simulated = scores.simulated();
  std::sort(limits.begin(), limits.end(), [](Bytes x, Bytes y) { return y < x; });
  for (const Bytes limit : limits) {
    const Candidate* const best = best_in(all, limit);
    if (best == nullptr || (!front.points.empty() && best->plan == front.points.back().plan.plan)) continue;
    FrontPoint point{*best, tokens_per_s(*best), std::nullopt};
    if (!front.points.empty()) {
      const FrontPoint& before = front.points.back();
      const double gib = static_cast<double>((before.plan.score.peak_total - best->score.peak_total).count()) / kGiB;
      if (gib > 0) point.next_gib = (before.tokens_per_s / point.tokens_per_s - 1) / gib;
    }
    front.points.push_back(std::move(point));
  }
  return front;
}

}  // namespace fsdp
