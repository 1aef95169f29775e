#include "planner/search/rivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace fsdp {

namespace {

double sequences(const Judged& j) {
  return static_cast<double>(j.option.batch.micro_batch) * static_cast<double>(j.option.batch.grad_accum);
}

// The part of the step that grew most, both steps scaled to the winner's number of sequences.
std::string what_grew(const Judged& loser, const Judged& best) {
  const double scale = sequences(best) / sequences(loser);
  const BreakdownPart* worst = &kBreakdownParts[0];
  double most = -1;
  for (const BreakdownPart& p : kBreakdownParts) {
    const double grown = (loser.score->where.*p.member).count() * scale - (best.score->where.*p.member).count();
    if (grown > most) std::tie(most, worst) = std::pair(grown, &p);
  }
  if (most <= 0) return "";
  // The same arithmetic takes longer only because communication beside it takes multiprocessors and memory bandwidth.
  const bool same_work = worst->member == &Breakdown::compute && loser.option.batch == best.option.batch;
  return fmt::format(": {} more {}{}{}", human(Seconds(most)), worst->noun,
                     same_work ? ", slowed by communication beside it" : "",
                     scale == 1 ? "" : " per step of equal size");
}

bool differs_only_on(const Choice& a, const Choice& b, Axis axis) {
  for (int i = 0; i < kAxes; ++i)
    if ((a[static_cast<std::size_t>(i)] != b[static_cast<std::size_t>(i)]) != (i == static_cast<int>(axis)))
      return false;
  return true;
}

// Of two alternatives on one axis, is `a` the one to show?
bool more_tempting(const Judged& a, const Judged& b, const Judged& best, Axis axis) {
  if (axis == Axis::batch) {
    const auto distance = [&](const Judged& j) {  // the next larger one first, then the next smaller ...
      const std::int64_t d = j.option.batch.micro_batch - best.option.batch.micro_batch;
      return d > 0 ? std::pair<int, std::int64_t>(0, d) : std::pair<int, std::int64_t>(1, -d);
    };
    return distance(a) < distance(b);
  }
  if (a.score.has_value() != b.score.has_value()) return a.score.has_value();
  return a.score ? a.seconds_per_sequence() < b.seconds_per_sequence() : a.floor < b.floor;
}

int rank_of(Verdict v) { return static_cast<int>(v); }  // fits, tight, does not fit

}  // namespace

double Judged::seconds_per_sequence() const { return score->step.count() / sequences(*this); }

bool better(const Judged& a, const Judged& b) {
  if (a.score.has_value() != b.score.has_value()) return a.score.has_value();
  if (!a.score) return a.floor < b.floor;
  return std::tuple(rank_of(a.score->verdict), a.seconds_per_sequence(), a.score->peak_total, !a.option.naive) <
         std::tuple(rank_of(b.score->verdict), b.seconds_per_sequence(), b.score->peak_total, !b.option.naive);
}

Reason why_lost(const Judged& loser, const Judged& best, Bytes limit) {
  if (!loser.score)
    return {Verdict::does_not_fit, fmt::format("needs at least {} of {}", human(loser.floor), human(limit))};
  const Score& s = *loser.score;
  if (s.verdict == Verdict::does_not_fit)
    return {Verdict::does_not_fit, fmt::format("needs {} of {}", human(s.peak_total), human(limit))};
  if (rank_of(s.verdict) > rank_of(best.score->verdict))
    return {Verdict::tight,
            fmt::format("{} if the allocator may keep what it freed, of {}", human(s.peak_total), human(limit))};
  const double slower = loser.seconds_per_sequence() / best.seconds_per_sequence() - 1;
  if (slower >= 0.001) return {std::nullopt, fmt::format("{:.1f}% slower{}", 100 * slower, what_grew(loser, best))};
  const Bytes more = s.peak_total - best.score->peak_total;
  return {std::nullopt, more > Bytes(0) ? fmt::format("as fast, but needs {} more", human(more)) : "no faster"};
}

std::vector<std::size_t> rivals(const std::vector<Judged>& all, std::size_t best, std::size_t most) {
  std::vector<std::size_t> shown;
  const auto show = [&](std::size_t i) {
    if (i != best && shown.size() < most && std::find(shown.begin(), shown.end(), i) == shown.end()) shown.push_back(i);
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].option.naive) show(i);
  for (const Axis axis : {Axis::checkpointing, Axis::batch, Axis::reshard, Axis::wrap, Axis::mesh}) {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < all.size(); ++i)
      if (differs_only_on(all[i].option.choice, all[best].option.choice, axis) &&
          (!found || more_tempting(all[i], all[*found], all[best], axis)))
        found = i;
    if (found) show(*found);
  }
  return shown;
}

}  // namespace fsdp
