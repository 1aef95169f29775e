// The expectation.
//
// From the moment a run goes on after a recovery, its checkpoint durable, to the next such moment is a cycle; cycles
// are independent, so the parts of the time are those of a mean cycle (renewal-reward). With failure rate r = 1/mtbf,
// and P the period from one snapshot to the next (training or the write before it, whichever is longer, and the stall):
//
//   The run lives for t, exponentially distributed. No write is pending when it goes on, so that it takes its first
//   snapshot after P1 = training + stall; the others follow P apart. Each is durable w = write after it was taken:
//     E[durable snapshots] = sum over k >= 0 of exp(-r (P1 + k P + w)) = exp(-r (P1 + w)) / (1 - exp(-r P)),
//     P(at least one is)   = exp(-r (P1 + w)).
//   It then takes detection, and recoveries of length R until one does not fail. With X the mean time of them all,
//   X = (1 - exp(-r R)) / r + (1 - exp(-r R)) (detection + X), so
//     X = (exp(r R) - 1) (1/r + detection).
//   A mean cycle takes 1/r + detection + X.
//
// All of it is divided by exp(r R) below, the attempts at recovery in a cycle: finite even if they hardly ever succeed.
//
// With write = 0 and detection = 0 this is Daly's complete solution: stall + training in T takes
// (exp(r P) - 1) exp(r R) / r.
#include "simulator/goodput/goodput.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/input/error.h"
#include "models/units.h"

namespace fsdp {
namespace {

void check(const LongRun& run) {
  const auto refuse = [](const char* field, const char* problem) { throw InputError(field, problem); };
  if (!(run.step > 0) || !std::isfinite(run.step)) refuse("step", "must be positive");
  if (!(run.mtbf > 0) || !std::isfinite(run.mtbf)) refuse("mtbf", "must be positive");
  for (const auto& [field, value] : {std::pair{"stall", run.stall},
                                     {"write", run.write},
                                     {"detection", run.detection},
                                     {"restart", run.restart},
                                     {"load", run.load},
                                     {"warmup", run.warmup},
                                     {"tokens_per_step", run.tokens_per_step}})
    if (!(value >= 0) || !std::isfinite(value)) refuse(field, "must not be negative");
  if (run.spares && (run.spares->count < 0 || !(run.spares->repair_seconds >= 0)))
    refuse("spares", "must not be negative");
}

// Probability that all of `servers` are busy, in Erlang's loss system with `load` arrivals per service time.
double erlang_loss(std::int64_t servers, double load) {
  double blocked = 1;
  for (std::int64_t n = 1; n <= servers; ++n) blocked = load * blocked / (static_cast<double>(n) + load * blocked);
  return blocked;
}

// The run waits while one more has failed than there are spares.
double waiting_for_spares(const LongRun& run, double exposed) {
  if (!run.spares || run.spares->repair_seconds == 0) return 0;
  return erlang_loss(run.spares->count + 1, exposed / run.mtbf * run.spares->repair_seconds);
}

// A cycle, as far as the interval between saves decides it.
struct Saves {
  double trained, first, period;
  double any_log;  // of the probability that a snapshot is durable

  Saves(const LongRun& run, std::int64_t save_every)
      : trained(static_cast<double>(save_every) * run.step),
        first(trained + run.stall),
        period(std::max(trained, run.write) + run.stall),
        any_log(-(first + run.write) / run.mtbf) {}
  // Of what is trained and not lost. Finite where that itself is too small for a number.
  [[nodiscard]] double training_log(const LongRun& run) const {
    return std::log(trained) + any_log - std::log(-std::expm1(-period / run.mtbf));
  }
};

// Training between saves that trains most. Below `write` more training costs nothing but the risk of a failure in it;
// above, it is where the derivative of Saves::training_log is 0.
double best_training(const LongRun& run) {
  const auto rises = [&](double trained) {
    return trained < run.write ? trained < run.mtbf
                               : trained / run.mtbf < -std::expm1(-(trained + run.stall) / run.mtbf);
  };
  double low = 0, high = run.mtbf;
  for (int i = 0; i < 200; ++i) {
    const double middle = low + (high - low) / 2;
    (rises(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

double recovery_succeeds(const LongRun& run) { return std::exp(-run.recovery() / run.mtbf); }

Goodput expected_goodput(const LongRun& run, std::int64_t save_every, std::optional<double> waiting) {
  check(run);
  if (save_every < 1) throw InputError("save_every", "must be at least 1");
  const Saves saves(run, save_every);
  const double any = std::exp(saves.any_log);                          // cycles with a durable snapshot
  const double durable = any / -std::expm1(-saves.period / run.mtbf);  // snapshots per cycle
  const double recovers = recovery_succeeds(run);
  const double attempt = run.mtbf + run.detection;  // until the failure, in recovery or after it, and until it is seen
  // The time inside a phase that begins `after` an attempt does, and lasts for `seconds`.
  const auto phase = [&](double after, double seconds) {
    return run.mtbf * std::exp(-after / run.mtbf) * -std::expm1(-seconds / run.mtbf);
  };
  Goodput g;
  g.save_every = save_every;
  g.waiting = waiting ? *waiting : waiting_for_spares(run, run.mtbf / attempt);
  const double part = (1 - g.waiting) / attempt;
  const double saved =
      durable * run.stall + (durable - any) * (saves.period - saves.first);  // saves that are not lost, per cycle
  g.training = durable * saves.trained * recovers * part;
  g.saving = saved * recovers * part;
  g.redone = std::max(0.0, run.mtbf - durable * saves.trained - saved) * recovers * part;
  g.detection = run.detection * part;
  g.restart = phase(0, run.restart) * part;
  g.load = phase(run.restart, run.load) * part;
  g.warmup = phase(run.restart + run.load, run.warmup) * part;
  g.failures_per_day = kDay.count() * part;  // each attempt follows one
  const double all = g.training + g.saving + g.redone + g.detection + g.restart + g.load + g.warmup + g.waiting;
  if (!(std::abs(all - 1) < 1e-6)) throw InputError("mtbf", "is too far from the run's other times to compute with");
  return g;
}

double young_interval(double stall, double mtbf) { return std::sqrt(2 * stall * mtbf); }

double daly_interval(double stall, double mtbf) {
  if (stall >= 2 * mtbf) return mtbf;
  const double x = stall / (2 * mtbf);
  return young_interval(stall, mtbf) * (1 + std::sqrt(x) / 3 + x / 9) - stall;
}

BestInterval best_interval(const LongRun& run, std::optional<double> waiting) {
  check(run);
  constexpr std::int64_t most = std::int64_t{1} << 60;
  const auto training_log = [&](std::int64_t n) { return Saves(run, n).training_log(run); };
  const double steps = std::clamp(std::floor(best_training(run) / run.step), 1.0, static_cast<double>(most));
  auto best = static_cast<std::int64_t>(steps);
  if (training_log(best + 1) > training_log(best)) ++best;
  BestInterval result{expected_goodput(run, best, waiting), best, best};
  const double most_trained = result.best.training, best_log = training_log(best);
  const auto enough = [&](std::int64_t n) {
    return most_trained * std::exp(training_log(n) - best_log) >= most_trained - 0.001;
  };
  const auto edge = [&](std::int64_t inside, std::int64_t outside) {
    while (std::abs(outside - inside) > 1) {
      const std::int64_t middle = inside + (outside - inside) / 2;
      (enough(middle) ? inside : outside) = middle;
    }
    return inside;
  };
  result.lowest = enough(1) ? 1 : edge(best, 1);
  std::int64_t above = best + 1;
  while (above <= most && enough(above)) above *= 2;
  result.highest = above <= most ? std::optional(edge(best, above)) : std::nullopt;
  return result;
}

}  // namespace fsdp
