// Goodput of a long run: which part of its days trains, when GPUs fail and checkpoints bring it back.
//
// Failures that end the run come at a constant rate, independent of each other and of what the run does (while it
// computes, saves, restarts; not between a failure and its detection, nor while it waits for a spare). Each costs: the
// work since the last checkpoint that is on the disk, its detection, then a recovery (restart, load, warm-up), which
// starts again when it fails itself. A save stops training for `stall`; the checkpoint is durable `write` later. The
// next save waits for the write before it.
#pragma once

#include <cstdint>
#include <optional>

#include "models/units.h"

namespace fsdp {

struct Spares {
  std::int64_t count = 0;     // each failure takes one, until what failed is repaired
  double repair_seconds = 0;  // mean; exponentially distributed
};

struct LongRun {  // seconds
  double step = 0;
  double mtbf = 0;  // of the whole cluster: mean time between failures that end the run
  double stall = 0, write = 0;
  double detection = 0;
  double restart = 0, load = 0, warmup = 0;
  std::optional<Spares> spares = {};  // none: there is always one
  double tokens_per_step = 0;
  [[nodiscard]] double recovery() const { return restart + load + warmup; }
};

// Where the time goes, as parts of the whole; they add up to 1.
struct Goodput {
  std::int64_t save_every = 0;                              // steps
  double training = 0;                                      // steps whose work was not lost
  double saving = 0;                                        // training stands still, saves that were not lost
  double redone = 0;                                        // steps and saves lost to failures
  double detection = 0, restart = 0, load = 0, warmup = 0;  // attempts that failed included
  double waiting = 0;                                       // for a spare
  double failures_per_day = 0;
  [[nodiscard]] double tokens_per_day(const LongRun& run) const {
    return kDay.count() * training / run.step * run.tokens_per_step;
  }
};

// The mean over an endless run, exact without spares. With spares it is exact but for `waiting`: where that part of the
// time is not given, it is that of machines that fail only while the run can, at its mean rate (Erlang's loss formula).
// Throws InputError for a run that is impossible.
[[nodiscard]] Goodput expected_goodput(const LongRun&, std::int64_t save_every, std::optional<double> waiting = {});

// Probability that an attempt at recovery succeeds.
[[nodiscard]] double recovery_succeeds(const LongRun&);

// The same by Monte Carlo, failure by failure: no approximation with spares. `waiting` does not depend on the interval,
// for the same seed. None where recovery hardly ever succeeds (fewer than one attempt in a hundred): most failures
// would then meet no training.
struct SimulatedGoodput {
  Goodput mean;
  double standard_error = 0;  // of `training`
  std::int64_t failures = 0;
};
[[nodiscard]] std::optional<SimulatedGoodput> simulated_goodput(const LongRun&, std::int64_t save_every,
                                                                std::int64_t failures, std::uint64_t seed);

// Seconds of training between saves that Young (1974) and Daly (2006) find best, for saves that are all stall; as
// stall / mtbf goes to 0 all three agree.
[[nodiscard]] double young_interval(double stall, double mtbf);
[[nodiscard]] double daly_interval(double stall, double mtbf);

// The interval that trains most, with spares or without: what is not training or saving takes the same time at every
// interval.
struct BestInterval {
  Goodput best;  // expected
  // Intervals between these train at most 0.1 % of the time less.
  std::int64_t lowest = 0;
  std::optional<std::int64_t> highest = {};  // none: nor do longer ones
};
[[nodiscard]] BestInterval best_interval(const LongRun&, std::optional<double> waiting = {});

}  // namespace fsdp
