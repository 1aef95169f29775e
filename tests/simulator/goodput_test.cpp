// Goodput: the closed form and its Monte Carlo against a simulation of every event, against integrals that are taken
// numerically, and against Young's and Daly's published intervals.
#include "simulator/goodput/goodput.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "models/input/error.h"

using namespace fsdp;

namespace {

double sum(const Goodput& g) {
  return g.training + g.saving + g.redone + g.detection + g.restart + g.load + g.warmup + g.waiting;
}

LongRun usual() {
  LongRun r;
  r.step = 10;
  r.mtbf = 3 * 3600;
  r.stall = 30;
  r.write = 200;
  r.detection = 600;
  r.restart = 240;
  r.load = 60;
  r.warmup = 90;
  r.tokens_per_step = 4e6;
  return r;
}

// Simpson's rule.
template <class F>
double integral(F f, double from, double to, int intervals) {
  const double h = (to - from) / intervals;
  double total = f(from) + f(to);
  for (int i = 1; i < intervals; ++i) total += (i % 2 == 0 ? 2 : 4) * f(from + i * h);
  return total * h / 3;
}

// A mean cycle, integrated over the time t at which the run fails, period by period; recoveries by their own integral.
double integrated(const LongRun& run, std::int64_t save_every) {
  const double rate = 1 / run.mtbf, trained = static_cast<double>(save_every) * run.step;
  const double first = trained + run.stall, period = std::max(trained, run.write) + run.stall;
  const auto density = [&](double t) { return rate * std::exp(-rate * t); };
  double durable = 0;
  for (int k = 1; k * period < 40 * run.mtbf; ++k) {
    const double begin = first + (k - 1) * period;
    durable += (k - 1) * integral(density, begin, begin + run.write, 200) +
               k * integral(density, begin + run.write, begin + period, 200);
  }
  const double lived = integral([&](double t) { return t * density(t); }, 0, 60 * run.mtbf, 200'000);
  // X = detection + P(fails) (mean time to that failure + X) + P(does not) R
  const double fails = integral(density, 0, run.recovery(), 2000);
  const double until = integral([&](double t) { return t * density(t); }, 0, run.recovery(), 2000);
  const double recovered = (run.detection + until + (1 - fails) * run.recovery()) / (1 - fails);
  return durable * trained / (lived + recovered);
}

// The run event by event, as goodput.h describes it, and by nothing else: steps, stalls, waits for the write before,
// ends of writes, and failures.
class EventByEvent {
 public:
  EventByEvent(const LongRun& run, std::int64_t save_every)
      : run_(run), trains_(static_cast<double>(save_every) * run.step), failure_(1 / run.mtbf) {}

  Goodput after(int lives) {
    for (int i = 0; i < lives; ++i) {
      live();
      while (!recovers()) {
      }
    }
    const double all = sum(time_);
    for (double Goodput::*part : {&Goodput::training, &Goodput::saving, &Goodput::redone, &Goodput::detection,
                                  &Goodput::restart, &Goodput::load, &Goodput::warmup})
      time_.*part /= all;
    return time_;
  }

 private:
  struct Work {
    double trained = 0, stood = 0;
  };

  void live() {
    enum class Doing { training, waiting, stalling } doing = Doing::training;
    constexpr double never = std::numeric_limits<double>::infinity();
    const double failure = failure_(engine_);
    double now = 0, doing_ends = trains_, write_ends = never;
    Work since_snapshot, in_write, on_disk;
    while (now < failure) {
      const double next = std::min({doing_ends, write_ends, failure});
      (doing == Doing::training ? since_snapshot.trained : since_snapshot.stood) += next - now;
      now = next;
      if (now == failure) break;
      if (now == write_ends) {
        on_disk.trained += in_write.trained;
        on_disk.stood += in_write.stood;
        write_ends = never;
        if (doing == Doing::waiting) doing = Doing::stalling, doing_ends = now + run_.stall;
      } else if (doing == Doing::training) {
        doing = write_ends < never ? Doing::waiting : Doing::stalling;
        doing_ends = doing == Doing::waiting ? never : now + run_.stall;
      } else {
        in_write = since_snapshot;
        since_snapshot = {};
        write_ends = now + run_.write;
        doing = Doing::training;
        doing_ends = now + trains_;
      }
    }
    time_.training += on_disk.trained;
    time_.saving += on_disk.stood;
    time_.redone += failure - on_disk.trained - on_disk.stood;
  }

  bool recovers() {
    time_.detection += run_.detection;
    double left = failure_(engine_);
    for (const auto& [seconds, into] :
         {std::pair{run_.restart, &time_.restart}, {run_.load, &time_.load}, {run_.warmup, &time_.warmup}}) {
      *into += std::min(left, seconds);
      if (left <= seconds) return false;
      left -= seconds;
    }
    return true;
  }

  const LongRun run_;
  const double trains_;
  std::mt19937_64 engine_{11};
  std::exponential_distribution<double> failure_;
  Goodput time_;
};

}  // namespace

TEST_CASE("the expectation is the integral over the moment of the failure") {
  for (const double write : {0.0, 50.0, 900.0, 4000.0})
    for (const std::int64_t every : {1, 30, 200, 1500}) {
      LongRun run = usual();
      run.write = write;
      CAPTURE(write);
      CAPTURE(every);
      const Goodput g = expected_goodput(run, every);
      CHECK(g.training == doctest::Approx(integrated(run, every)).epsilon(1e-6));
      CHECK(sum(g) == doctest::Approx(1).epsilon(1e-12));
    }
}

TEST_CASE("Monte Carlo and the expectation agree in every part of the time") {
  for (const double write : {0.0, 200.0, 3000.0})
    for (const double detection : {0.0, 600.0})
      for (const std::int64_t every : {5, 60, 600}) {
        LongRun run = usual();
        run.write = write;
        run.detection = detection;
        CAPTURE(write);
        CAPTURE(every);
        const Goodput e = expected_goodput(run, every);
        const SimulatedGoodput s = simulated_goodput(run, every, 200'000, 7).value();
        CHECK(std::abs(s.mean.training - e.training) < 5 * s.standard_error);
        CHECK(s.standard_error < 0.002);
        CHECK(sum(s.mean) == doctest::Approx(1).epsilon(1e-9));
        for (double Goodput::*part : {&Goodput::saving, &Goodput::redone, &Goodput::detection, &Goodput::restart,
                                      &Goodput::load, &Goodput::warmup})
          CHECK(s.mean.*part == doctest::Approx(e.*part).epsilon(0.03));
        CHECK(s.mean.failures_per_day == doctest::Approx(e.failures_per_day).epsilon(0.01));
      }
}

TEST_CASE("the first save after a recovery waits for no write: a simulation of every event says the same") {
  LongRun run;  // a write lasts longer than the training between saves, and half the time between failures
  run.step = 1;
  run.mtbf = 600;
  run.write = 300;
  run.restart = 60;
  for (const double stall : {0.0, 5.0})
    for (const std::int64_t every : {3, 30, 299, 600}) {
      run.stall = stall;
      CAPTURE(stall);
      CAPTURE(every);
      const Goodput e = expected_goodput(run, every),
                    simulated = simulated_goodput(run, every, 1'000'000, 7).value().mean,
                    events = EventByEvent(run, every).after(1'000'000);
      for (double Goodput::*part : {&Goodput::training, &Goodput::saving, &Goodput::redone, &Goodput::restart}) {
        CHECK(e.*part == doctest::Approx(events.*part).epsilon(0.01));
        CHECK(simulated.*part == doctest::Approx(events.*part).epsilon(0.01));
      }
    }
}

TEST_CASE("as saving becomes short beside the time between failures, the best interval becomes Young's and Daly's") {
  double before = 1;
  for (const double stall : {1000.0, 100.0, 10.0, 1.0, 0.1}) {
    LongRun run;
    run.step = 0.01;
    run.mtbf = 100'000;
    run.stall = stall;
    run.restart = 300;
    CAPTURE(stall);
    const auto best = static_cast<double>(best_interval(run).best.save_every) * run.step;
    CHECK(best == doctest::Approx(daly_interval(stall, run.mtbf)).epsilon(0.001));
    const double off = std::abs(best / young_interval(stall, run.mtbf) - 1);
    CHECK(off < before);
    before = off;
  }
  CHECK(before < 0.002);
}

// Daly (2006): M exp(R/M) (exp((tau + delta) / M) - 1) / tau of wall-clock time per time trained.
TEST_CASE("without detection and without a write in the background it is Daly's complete solution") {
  LongRun run = usual();
  run.write = run.detection = 0;
  for (const std::int64_t every : {10, 100, 1000}) {
    const double tau = static_cast<double>(every) * run.step, m = run.mtbf;
    const double daly = m * std::exp(run.recovery() / m) * (std::exp((tau + run.stall) / m) - 1) / tau;
    CHECK(expected_goodput(run, every).training == doctest::Approx(1 / daly).epsilon(1e-12));
  }
}

TEST_CASE("limits: nothing fails, nothing recovers; more of anything bad never helps") {
  LongRun run = usual();
  run.mtbf = 1e15;
  const Goodput never = expected_goodput(run, 100);
  CHECK(never.training == doctest::Approx(1000.0 / 1030.0).epsilon(1e-9));
  CHECK(never.saving == doctest::Approx(30.0 / 1030.0).epsilon(1e-9));
  CHECK(never.tokens_per_day(run) == doctest::Approx(86'400 / 10.3 * 4e6).epsilon(1e-9));
  run.mtbf = 1e-3;  // a recovery takes 390 s
  CHECK(expected_goodput(run, 1).training == 0);
  CHECK(sum(expected_goodput(run, 1)) == doctest::Approx(1).epsilon(1e-12));
  CHECK_FALSE(simulated_goodput(run, 1, 1000, 1).has_value());
  for (double LongRun::*bad :
       {&LongRun::stall, &LongRun::write, &LongRun::detection, &LongRun::restart, &LongRun::load, &LongRun::warmup}) {
    LongRun worse = usual();
    worse.*bad *= 1.5;
    CHECK(expected_goodput(worse, 60).training < expected_goodput(usual(), 60).training);
  }
  LongRun rarer = usual();
  rarer.mtbf *= 2;
  CHECK(expected_goodput(rarer, 60).training > expected_goodput(usual(), 60).training);
}

TEST_CASE("spares: many are as good as always one; with few the expectation stays near Monte Carlo") {
  LongRun run = usual();
  run.spares = Spares{200, 24 * 3600};
  CHECK(expected_goodput(run, 60).training == doctest::Approx(expected_goodput(usual(), 60).training).epsilon(1e-9));
  CHECK(simulated_goodput(run, 60, 20'000, 3).value().mean.waiting == 0);
  double before = 0;
  for (const std::int64_t count : {0, 2, 6, 12}) {
    run.spares->count = count;
    CAPTURE(count);
    const Goodput e = expected_goodput(run, 60);
    const SimulatedGoodput s = simulated_goodput(run, 60, 200'000, 3).value();
    CHECK(e.waiting == doctest::Approx(s.mean.waiting).epsilon(0.03));
    CHECK(e.training == doctest::Approx(s.mean.training).epsilon(0.03));
    CHECK(s.mean.training > before);
    before = s.mean.training;
  }
}

TEST_CASE("the best interval: no neighbour is better, and between its bounds 0.1 % of the time is lost at most") {
  for (const double write : {0.0, 200.0, 3000.0}) {
    LongRun run = usual();
    run.write = write;
    CAPTURE(write);
    const BestInterval b = best_interval(run);
    const auto trains = [&](std::int64_t n) { return expected_goodput(run, n).training; };
    for (std::int64_t n = 1; n < 2000; ++n) CHECK(trains(n) <= b.best.training + 1e-12);
    CHECK(b.lowest <= b.best.save_every);
    REQUIRE(b.highest.has_value());
    CHECK(b.best.save_every <= *b.highest);
    CHECK(trains(b.lowest) >= b.best.training - 0.001);
    CHECK(trains(*b.highest) >= b.best.training - 0.001);
    if (b.lowest > 1) CHECK(trains(b.lowest - 1) < b.best.training - 0.001);
    CHECK(trains(*b.highest + 1) < b.best.training - 0.001);
  }
}

TEST_CASE("where recovery hardly ever ends, the parts add up, and nothing is simulated for ever") {
  for (const double restart : {240.0, 3e4, 3e5, 3e6, 3e9, 1e12})
    for (const double mtbf : {1e-3, 12.0, 3600.0, 1e5})
      for (const double write : {0.0, 1e12}) {
        LongRun run = usual();
        run.restart = restart;
        run.mtbf = mtbf;
        run.write = write;
        CAPTURE(restart);
        CAPTURE(mtbf);
        const Goodput e = expected_goodput(run, 60);
        CHECK(sum(e) == doctest::Approx(1).epsilon(1e-9));
        CHECK(e.restart > 0);
        const auto s = simulated_goodput(run, 60, 20'000, 1);
        CHECK(s.has_value() == (run.recovery() < mtbf * std::log(100.0)));
        if (s) CHECK(s->mean.restart == doctest::Approx(e.restart).epsilon(0.03));
        CHECK(best_interval(run).best.save_every >= 1);
      }
  // The best interval does not depend on recoveries, though the time it trains is too small for a number.
  LongRun run = usual();
  const std::int64_t best = best_interval(run).best.save_every;
  run.restart = 1e8;
  CHECK(best_interval(run).best.training == 0);
  CHECK(best_interval(run).best.save_every == best);
  CHECK(best_interval(run).lowest == 1);
  CHECK_FALSE(best_interval(run).highest.has_value());
}

TEST_CASE("the longest interval that is nearly as good is found however long it is") {
  LongRun run = usual();
  run.step = 0.001;
  run.mtbf = 3600;
  run.stall = run.write = run.warmup = run.load = 0;
  run.restart = 6.5 * 3600;  // 0.15 % of the time trains at best; up to a long interval, more than 0.05 %
  run.detection = 0;
  const BestInterval b = best_interval(run);
  CHECK(b.best.save_every == 1);
  REQUIRE(b.highest.has_value());
  CHECK(*b.highest > 1000);
  CHECK(expected_goodput(run, *b.highest).training >= b.best.training - 0.001);
  CHECK(expected_goodput(run, *b.highest + 1).training < b.best.training - 0.001);
}

TEST_CASE("with spares, no interval trains more than the best: one waiting time for all of them") {
  LongRun run = usual();
  run.spares = Spares{2, 12 * 3600};
  const double waiting = simulated_goodput(run, 60, 50'000, 3).value().mean.waiting;
  CHECK(waiting > 0.01);
  const BestInterval b = best_interval(run, waiting);
  CHECK(b.best.waiting == waiting);
  for (const std::int64_t every : {1, 10, 50, 70, 80, 90, 100, 200, 2000}) {
    CAPTURE(every);
    const SimulatedGoodput s = simulated_goodput(run, every, 50'000, 3).value();
    CHECK(s.mean.waiting == doctest::Approx(waiting).epsilon(1e-9));
    const Goodput e = expected_goodput(run, every, waiting);
    CHECK(std::abs(e.training - s.mean.training) < 5 * s.standard_error);
    CHECK(sum(e) == doctest::Approx(1).epsilon(1e-12));
    CHECK(e.training <= b.best.training);
  }
}

TEST_CASE("the same seed gives the same numbers, another one others") {
  const SimulatedGoodput a = simulated_goodput(usual(), 60, 5000, 1).value(),
                         b = simulated_goodput(usual(), 60, 5000, 1).value(),
                         c = simulated_goodput(usual(), 60, 5000, 2).value();
  CHECK(a.mean.training == b.mean.training);
  CHECK(a.mean.training != c.mean.training);
}

TEST_CASE("a run that is impossible is refused, and the field named") {
  for (const auto& [field, change] :
       std::vector<std::pair<std::string, void (*)(LongRun&)>>{{"step", [](LongRun& r) { r.step = 0; }},
                                                               {"mtbf", [](LongRun& r) { r.mtbf = -1; }},
                                                               {"load", [](LongRun& r) { r.load = std::nan(""); }},
                                                               {"spares", [](LongRun& r) {
                                                                  r.spares = Spares{-1, 1};
                                                                }}}) {
    LongRun run = usual();
    change(run);
    try {
      (void)expected_goodput(run, 1);
      FAIL(field);
    } catch (const InputError& e) {
      CHECK(std::string(e.what()).find(field) != std::string::npos);
    }
  }
  CHECK_THROWS_AS((void)expected_goodput(usual(), 0), InputError);
}
