#include "planner/search/improve.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "models/input/error.h"

namespace fsdp {
namespace {

constexpr double kGain = 1.001;      // a change that gains less is not made: predictions do not resolve it
constexpr double kRareGain = 1.003;  // nor one to a choice that few use
constexpr double kRisky = 0.01;      // chance of running out of memory below which none is looked for that is less
constexpr double kNever = std::numeric_limits<double>::infinity();

class Climber {
 public:
  Climber(const Space& space, const ImproveOptions& options, Scorer& scorer, Admission& admission)
      : space_(space), options_(options), scorer_(scorer), admission_(admission) {}

  // The fastest plan of this design that fits and takes less than `bar` seconds a sequence; or else, where nothing is
  // known to fit, the one that needs least.
  std::optional<FittedPlan> fit(const Design& d, double bar) {
    std::optional<FittedPlan> best, least;
    const auto none = rung(d, space_.ladders.front(), 0);
    if (none && none->score.verdict == Verdict::fits) return faster(none, bar) ? none : std::nullopt;
    if (none && !faster(none, bar)) return std::nullopt;  // recomputation would only add to it
    keep_least(least, none);
    for (const auto& ladder : space_.ladders) {
      if (const auto found = lowest_that_fits(d, ladder, none, bar, least)) {
        bar = found->seconds_per_sequence();
        best = found;
      }
    }
    if (best) return best;
    return fits(least) ? std::nullopt : least;
  }

  // The plans of this design that recompute what comes next on the ladders, up to so many rungs.
  std::vector<FittedPlan> rungs_above(const FittedPlan& p, std::size_t most) {
    std::vector<FittedPlan> found;
    for (const auto& ladder : space_.ladders) {
      const auto at = std::find(ladder.begin(), ladder.end(), p.checkpointing);
      if (at == ladder.end()) continue;
      const auto first = static_cast<std::size_t>(at - ladder.begin()) + 1;
      for (std::size_t i = first; i < std::min(first + most, ladder.size()); ++i)
        if (auto next = rung(p.design, ladder, i)) found.push_back(std::move(*next));
    }
    return found;
  }

  std::optional<FittedPlan> with(const Design& d, const std::string& checkpointing) {
    return rung(d, {checkpointing}, 0);
  }

  // As many as may be; or the caller wants what there is.
  [[nodiscard]] bool exhausted() const { return used_up() || (options_.stop && options_.stop()); }
  [[nodiscard]] bool used_up() const { return simulations_ >= options_.most_simulations - kept_; }
  void use_all() { kept_ = 0; }
  [[nodiscard]] std::int64_t simulations() const { return simulations_; }

 private:
  [[nodiscard]] static bool faster(const std::optional<FittedPlan>& p, double bar) {
    return p && p->seconds_per_sequence() < bar;
  }
  static bool fits(const std::optional<FittedPlan>& p) { return p && p->score.verdict == Verdict::fits; }
  static void keep_least(std::optional<FittedPlan>& least, const std::optional<FittedPlan>& p) {
    if (p && (!least || p->score.peak_total < least->score.peak_total)) least = p;
  }

  // Peaks fall almost evenly from rung to rung, so the place where they pass the limit is guessed by a straight line
  // between the rungs that are known, and halved when guesses do not close in.
  std::optional<FittedPlan> lowest_that_fits(const Design& d, const std::vector<std::string>& ladder,
                                             const std::optional<FittedPlan>& none, double bar,
                                             std::optional<FittedPlan>& least) {
    std::size_t low = 0, high = ladder.size() - 1;
    if (high == 0) return std::nullopt;
    std::optional<FittedPlan> above = rung(d, ladder, high), below = none;
    keep_least(least, above);
    if (!fits(above)) return std::nullopt;
    for (int guesses = 0; high - low > 1; ++guesses) {
      if (below && !faster(below, bar)) return std::nullopt;
      const std::size_t at = guesses < 4 ? guess(low, high, below, *above) : low + (high - low) / 2;
      const std::optional<FittedPlan> between = rung(d, ladder, at);
      if (fits(between)) high = at, above = between;
      else low = at, below = between;
    }
    return faster(above, bar) ? above : std::nullopt;
  }

  [[nodiscard]] std::size_t guess(std::size_t low, std::size_t high, const std::optional<FittedPlan>& below,
                                  const FittedPlan& above) const {
    if (!below) return low + (high - low) / 2;
    const auto bytes = [](Bytes b) { return static_cast<double>(b.count()); };
    const double most = bytes(below->score.peak_total), least = bytes(above.score.peak_total);
    if (most <= least) return low + (high - low) / 2;
    const double part = (most - bytes(options_.memory_limit)) / (most - least);
    const double at = static_cast<double>(low) + std::ceil(part * static_cast<double>(high - low));
    return std::clamp(static_cast<std::size_t>(std::max(0.0, at)), low + 1, high - 1);
  }

  // nullopt: the plan is not legal, cannot fit, or may not be simulated any more.
  std::optional<FittedPlan> rung(const Design& d, const std::vector<std::string>& ladder, std::size_t at) {
    for (const Tried& t : tried_)
      if (t.design == d && t.checkpointing == ladder[at]) return t.found;
    tried_.push_back({d, ladder[at], tried_anew(d, ladder[at])});
    return tried_.back().found;
  }

  // Two designs can be one plan: a choice may change nothing.
  std::optional<FittedPlan> tried_anew(const Design& d, const std::string& checkpointing) {
    FittedPlan f{d, checkpointing, plan_of(d, space_, checkpointing), {}};
    const std::string key = f.plan.digest();
    if (const auto known = known_.find(key); known != known_.end()) {
      if (!known->second) return std::nullopt;
      f.score = *known->second;
      return f;
    }
    std::optional<Score>& score = known_[key];
    if (exhausted() || !possible(f.plan)) return std::nullopt;
    ++simulations_;
    score = f.score = scorer_.fit_of(f.plan);
    return f;
  }

  // Legal, and by its floor not far beyond the limit: from there a straight line to the limit would mislead.
  [[nodiscard]] bool possible(const ShardingPlan& plan) {
    try {
      return admission_.floor(plan).bytes() < 4 * options_.memory_limit.count() && admission_.is_legal(plan);
    } catch (const InputError&) {
      return false;
    }
  }

  const Space& space_;
  const ImproveOptions& options_;
  Scorer& scorer_;
  Admission& admission_;
  struct Tried {
    Design design;
    std::string checkpointing;
    std::optional<FittedPlan> found;
  };
  std::vector<Tried> tried_;
  std::map<std::string, std::optional<Score>> known_;  // by the plan's digest
  std::int64_t simulations_ = 0;
  std::int64_t kept_ = options_.for_risk;
};

bool fits(const FittedPlan& p) { return p.score.verdict == Verdict::fits; }

// Is `a` better, by more than what a change is worth? A plan that fits beats all that do not; of those the least.
bool gains(const FittedPlan& a, const FittedPlan& b, double enough) {
  if (fits(a) != fits(b)) return fits(a);
  if (!fits(a))
    return static_cast<double>(a.score.peak_total.count()) * enough < static_cast<double>(b.score.peak_total.count());
  return a.seconds_per_sequence() * enough < b.seconds_per_sequence();
}

double bar_of(const FittedPlan& at, double enough) { return fits(at) ? at.seconds_per_sequence() / enough : kNever; }

// One round over all choices; true: something was gained.
template <class Tell, class Done>
bool round(const Space& space, Climber& climber, FittedPlan& at, const Tell& tell, const Done& done) {
  bool gained = false;
  for (const Knob& knob : knobs()) {
    if (done()) break;
    const double enough = knob.plain ? kGain : kRareGain;
    std::optional<FittedPlan> best;
    for (const Design& next : knob.near(at.design, space)) {
      const auto found = climber.fit(next, bar_of(best ? *best : at, best ? 1 : enough));
      if (found && gains(*found, best ? *best : at, best ? 1 : enough)) best = found;
    }
    tell(at);
    if (!best) continue;
    at = *best;
    gained = true;
  }
  return gained;
}

// Choices that do not pay go back to their defaults: of plans that cannot be told apart the plainest is taken.
void simplify(const Space& space, Climber& climber, FittedPlan& at) {
  for (const Knob& knob : knobs()) {
    if (knob.reset == nullptr) continue;
    Design plain = at.design;
    knob.reset(plain, space);
    if (plain == at.design) continue;
    const auto found = climber.fit(plain, at.seconds_per_sequence() * (knob.plain ? kGain : kRareGain));
    if (found && fits(*found)) at = *found;
  }
}

// A little more recomputation, or a loss in more parts, as long as less risk is worth more than the time that it takes;
// never as much as `slowest` seconds a sequence.
void calm(const Space& space, Climber& climber, FittedPlan& at, double slowest) {
  for (bool gained = true; gained && at.score.out_of_memory >= kRisky;) {
    gained = false;
    std::vector<FittedPlan> near = climber.rungs_above(at, 2);
    for (const std::int64_t chunks : space.chunks) {
      if (chunks <= at.design.loss_chunks) continue;
      Design parts = at.design;
      parts.loss_chunks = chunks;
      if (const auto found = climber.with(parts, at.checkpointing)) near.push_back(*found);
      break;
    }
    FittedPlan best = at;
    for (FittedPlan& next : near)
      if (fits(next) && next.seconds_per_sequence() < slowest && next.worth() < best.worth()) best = std::move(next);
    gained = best.plan != at.plan;
    at = std::move(best);
  }
}

}  // namespace

double FittedPlan::seconds_per_sequence() const {
  return score.step.count() / static_cast<double>(plan.sequences_per_rank());
}

Improved improve(const Space& space, const std::vector<Design>& starts, const ImproveOptions& options, Scorer& scorer,
                 Admission& admission) {
  Improved result;
  Climber climber(space, options, scorer, admission);
  const double known = options.faster_than > 0 ? options.faster_than : kNever;
  std::optional<FittedPlan> fastest;
  for (const Design& start : starts) {
    std::optional<FittedPlan> at = climber.fit(start, kNever);
    if (!at) {  // not everything goes with a loss in parts
      Design whole = start;
      whole.loss_chunks = space.chunks.front();
      at = climber.fit(whole, kNever);
    }
    if (!at) continue;
    const auto tell = [&](const FittedPlan& now) {
      const double better = known < kNever && fits(now) ? std::max(0.0, known / now.seconds_per_sequence() - 1) : 0;
      if (options.progress) options.progress(climber.simulations(), better);
    };
    const auto done = [&] { return options.any_that_fits && fits(*at); };
    while (!done() && round(space, climber, *at, tell, done) && !climber.exhausted()) {
    }
    if (!fits(*at)) continue;
    if (!done()) simplify(space, climber, *at);
    if (at->seconds_per_sequence() > known) continue;
    if (!fastest || at->seconds_per_sequence() < fastest->seconds_per_sequence()) fastest = at;
    climber.use_all();
    if (!done()) calm(space, climber, *at, known);
    if (result.best && result.best->worth() <= at->worth()) continue;
    result.best = at;
    if (done()) break;
  }
  if (result.best && fastest->seconds_per_sequence() < result.best->seconds_per_sequence()) result.fastest = fastest;
  result.simulations = climber.simulations();
  result.exhausted = climber.used_up();
  return result;
}

}  // namespace fsdp
