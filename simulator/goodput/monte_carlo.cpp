// The same run, failure by failure. Failures come at times drawn beforehand, whatever the run does then; the snapshots
// between two of them are counted as the expectation counts them (goodput.cpp), and not played one by one.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <queue>
#include <random>
#include <vector>

#include "models/input/error.h"
#include "models/units.h"
#include "simulator/goodput/goodput.h"

namespace fsdp {
namespace {

constexpr std::size_t kBatches = 50;
constexpr double kRarest = 0.01;  // probability of a recovery; the time that a simulation takes goes with its inverse

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  [[nodiscard]] double exponential(double mean) {
    constexpr double unit = 1.0 / 9007199254740992.0;  // 2^-53
    return -mean * std::log((static_cast<double>(engine_() >> 11) + 0.5) * unit);
  }

 private:
  std::mt19937_64 engine_;  // the same numbers everywhere, which the library's distributions do not promise
};

struct Times {
  double training = 0, saving = 0, redone = 0, detection = 0, restart = 0, load = 0, warmup = 0, waiting = 0;
  [[nodiscard]] double all() const {
    return training + saving + redone + detection + restart + load + warmup + waiting;
  }
};

class Simulation {
 public:
  Simulation(const LongRun& run, std::int64_t save_every, std::uint64_t seed)
      : run_(run),
        trained_(static_cast<double>(save_every) * run.step),
        failures_(seed),
        repairs_(~seed),
        until_failure_(failures_.exponential(run.mtbf)) {}

  // One cycle: from a recovery to the next.
  void cycle(Times& t, std::int64_t& failures) {
    work(t);
    for (bool recovered = false; !recovered; recovered = recover(t)) {
      ++failures;
      t.detection += run_.detection;
      now_ += run_.detection;
      wait_for_spare(t, now_ - run_.detection);
      until_failure_ = failures_.exponential(run_.mtbf);
    }
  }

 private:
  // Trains and saves until the next failure. A snapshot counts when its write has ended.
  void work(Times& t) {
    // The first save waits for no write before it. Whole periods at once: nothing happens in them.
    const double first = trained_ + run_.stall, period = std::max(trained_, run_.write) + run_.stall;
    const double life = until_failure_;
    const double durable = life < first + run_.write ? 0 : 1 + std::floor((life - (first + run_.write)) / period);
    const double saved = durable * run_.stall + std::max(0.0, durable - 1) * (period - first);
    t.training += durable * trained_;
    t.saving += saved;
    t.redone += life - durable * trained_ - saved;
    now_ += life;
  }

  // False: the next failure came first.
  bool recover(Times& t) {
    const std::array<std::pair<double, double*>, 3> phases = {
        {{run_.restart, &t.restart}, {run_.load, &t.load}, {run_.warmup, &t.warmup}}};
    for (const auto& [seconds, into] : phases) {
      const double lasted = std::min(seconds, until_failure_);
      *into += lasted;
      now_ += lasted;
      if (until_failure_ <= seconds) return false;
      until_failure_ -= seconds;
    }
    return true;
  }

  void wait_for_spare(Times& t, double failed_at) {
    if (!run_.spares) return;
    in_repair_.push(failed_at + repairs_.exponential(run_.spares->repair_seconds));
    while (!in_repair_.empty() && in_repair_.top() <= now_) in_repair_.pop();
    while (static_cast<std::int64_t>(in_repair_.size()) > run_.spares->count) {
      t.waiting += in_repair_.top() - now_;
      now_ = in_repair_.top();
      in_repair_.pop();
    }
  }

  const LongRun run_;
  const double trained_;
  Draws failures_, repairs_;
  double now_ = 0, until_failure_;
  std::priority_queue<double, std::vector<double>, std::greater<>> in_repair_;  // when each is repaired
};

}  // namespace

std::optional<SimulatedGoodput> simulated_goodput(const LongRun& run, std::int64_t save_every, std::int64_t failures,
                                                  std::uint64_t seed) {
  (void)expected_goodput(run, save_every);  // refuses what is impossible
  if (recovery_succeeds(run) < kRarest) return std::nullopt;
  SimulatedGoodput result;
  Simulation simulation(run, save_every, seed);
  Times all;
  std::array<double, kBatches> trained{}, lasted{};
  const std::int64_t each = std::max<std::int64_t>(1, failures / static_cast<std::int64_t>(kBatches));
  for (std::size_t b = 0; b < kBatches; ++b) {
    Times batch;
    const std::int64_t until = result.failures + each;
    while (result.failures < until) simulation.cycle(batch, result.failures);
    trained[b] = batch.training;
    lasted[b] = batch.all();
    for (double Times::*part : {&Times::training, &Times::saving, &Times::redone, &Times::detection, &Times::restart,
                                &Times::load, &Times::warmup, &Times::waiting})
      all.*part += batch.*part;
  }
  const double whole = all.all();
  Goodput& g = result.mean;
  g = {save_every,
       all.training / whole,
       all.saving / whole,
       all.redone / whole,
       all.detection / whole,
       all.restart / whole,
       all.load / whole,
       all.warmup / whole,
       all.waiting / whole,
       kDay.count() * static_cast<double>(result.failures) / whole};
  double squares = 0;  // of a ratio of sums: batches around the common line
  for (std::size_t b = 0; b < kBatches; ++b) squares += std::pow(trained[b] - g.training * lasted[b], 2);
  result.standard_error = std::sqrt(squares / (kBatches * (kBatches - 1.0))) * kBatches / whole;
  return result;
}

}  // namespace fsdp
