// A comparison must be able to fail: every test changes one thing that an instrument would see.
#include "simulator/records/compare.h"

#include <doctest/doctest.h>

#include "models/input/error.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

MemoryTimeline memory(std::int64_t start, std::vector<MemoryPoint> points) { return {std::move(points), start}; }

Prediction prediction() {
  Prediction p;
  p.provenance = {"toy", "m1", "p1", "host", "c1", "k1", "native", "i1", "fsdp2"};
  p.ranks = 2;
  p.roles = 2;
  p.step_time = Seconds(0.1);
  p.order = {{Stream::compute, Action::forward, "a mb 0"},
             {Stream::compute, Action::forward, "b mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 0 mb 0"},
             {Stream::all_gather, Action::all_gather, "unit 1 mb 0"}};
  p.by_action = {{{Action::forward, OpKind::linear}, 2, 0.06}, {{Action::all_gather}, 2, 0.02}};
  p.memory.init = memory(0, {{100, 100}});
  p.memory.first_step = memory(100, {{150, 120}, {200, 120}});
  p.memory.steady_step = memory(120, {{180, 120}});
  p.memory.peak = 200;
  p.peak_allocated = Bytes(200);
  p.role_of_rank = {0, 1};
  p.other_roles = {p.memory};
  p.other_roles[0].first_step.points[1] = {190, 110};  // the last rank holds less
  p.other_roles[0].peak = 190;
  return p;
}

Measurement measured(const Prediction& p) {
  Measurement m;
  m.provenance = p.provenance;
  m.median_step_seconds = 0.1;
  m.by_action = {{{Action::forward, OpKind::linear}, 2, 0.05}, {{Action::optimizer}, 1, 0.001}};
  for (std::int64_t r = 0; r < p.ranks; ++r) {
    const ProgramMemory& own = *memory_of(p, r);
    RankMeasurement rank;
    rank.rank = r;
    rank.order = p.order;
    rank.init = own.init;
    rank.first_step = own.first_step;
    rank.steady_step = own.steady_step;
    rank.peak_allocated_bytes = own.peak;
    m.ranks.push_back(rank);
  }
  return m;
}

bool mentions(const ValidationReport& r, const std::string& words) {
  for (const std::string& d : r.differences)
    if (d.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("equal is within; each rank is held against its own role") {
  const Prediction p = prediction();
  const ValidationReport r = compare(p, measured(p));
  CHECK(r.order_equal);
  CHECK(r.memory_equal);
  CHECK(r.within);
  CHECK(r.differences.empty());
  CHECK(r.step_time.error() == 0);
  CHECK(r.peak.error() == 0);
  // Largest disagreement first: forward linear 10 ms, all_gather 20 ms (not measured), optimizer 1 ms (not predicted).
  REQUIRE(r.by_action.size() == 3);
  CHECK(r.by_action[0].what == "all_gather");
  CHECK(r.by_action[1].what == "forward linear");
  CHECK(r.by_action[1].error() == relative(0.2));
  CHECK(r.by_action[2].predicted == 0);
}

TEST_CASE("order: a swap, a missing and an extra operation are named") {
  const Prediction p = prediction();
  Measurement m = measured(p);
  std::swap(m.ranks[1].order[2], m.ranks[1].order[3]);
  ValidationReport r = compare(p, m);
  CHECK_FALSE(r.order_equal);
  CHECK_FALSE(r.within);
  CHECK(mentions(
      r, "rank 1, stream G, position 0: predicted 'G: all_gather unit 0 mb 0', executed 'G: all_gather unit 1 mb 0'"));
  m = measured(p);
  m.ranks[0].order.pop_back();
  CHECK(
      mentions(compare(p, m), "rank 0, stream G, position 1: predicted 'G: all_gather unit 1 mb 0', executed nothing"));
  m.ranks[0].order = p.order;
  m.ranks[0].order.push_back({Stream::reduce_scatter, Action::reduce_scatter});
  CHECK(mentions(compare(p, m), "rank 0, stream R, position 0: predicted nothing, executed 'R: reduce_scatter'"));
}

TEST_CASE("memory of blocks that wait for streams: any between the bounds is within, one byte outside of them is not") {
  Prediction p = prediction();
  p.role_of_rank = {0, 0};
  p.memory.most = HeldMemory{p.memory.init, p.memory.first_step, p.memory.steady_step};
  p.memory.most->first_step.points[1] = {260, 150};
  p.memory.most->steady_step.points[0] = {210, 160};
  const auto with = [&](MemoryPoint first, MemoryPoint steady, std::int64_t peak) {
    Measurement m = measured(p);
    m.ranks[1].first_step.points[1] = first;
    m.ranks[1].steady_step.points[0] = steady;
    m.ranks[1].peak_allocated_bytes = peak;
    return compare(p, m);
  };
  for (const std::int64_t held : {0, 1, 30}) {
    const ValidationReport r = with({200 + held, 120 + held}, {180 + held, 120 + held}, 200 + held);
    CHECK(r.memory_equal);
    CHECK(r.within);
    CHECK(r.peak.error() == 0);
  }
  for (const MemoryPoint outside : {MemoryPoint{199, 120}, {261, 120}, {200, 119}, {200, 151}}) {
    const ValidationReport r = with(outside, {180, 120}, 200);
    CHECK_FALSE(r.memory_equal);
    CHECK(mentions(r, "rank 1, first step, operation 1: predicted 200 to 260 B before and 120 to 150 B after"));
  }
  CHECK_FALSE(with({200, 120}, {211, 120}, 211).memory_equal);
  CHECK(with({200, 120}, {180, 120}, 286).peak.error() < -0.09);  // 260 of 286 bytes
  Measurement m = measured(p);
  m.ranks[0].steady_step.start = 121;
  CHECK(mentions(compare(p, m), "rank 0, steady step: predicted 120 B allocated at its start"));
}

TEST_CASE("memory: one byte anywhere, on any rank, is a difference") {
  const Prediction p = prediction();
  const auto fails = [&](auto change, const char* words) {
    Measurement m = measured(p);
    change(m);
    const ValidationReport r = compare(p, m);
    CHECK_FALSE(r.memory_equal);
    CHECK_FALSE(r.within);
    CHECK(mentions(r, words));
  };
  fails([](Measurement& m) { m.ranks[0].init.points[0].after = 99; },
        "rank 0, init, operation 0: predicted 100 B before and 100 B after, measured 100 B and 99 B");
  fails([](Measurement& m) { m.ranks[1].first_step = m.ranks[0].first_step; }, "rank 1, first step, operation 1");
  fails([](Measurement& m) { m.ranks[0].steady_step.start += 1; },
        "rank 0, steady step: predicted 120 B allocated at its start");
  fails([](Measurement& m) { m.ranks[0].steady_step.points.clear(); }, "predicted 1 operations, measured 0");
  fails([](Measurement& m) { m.ranks[1].undeclared_bytes = 64; }, "rank 1: kernels took 64 B");
}

TEST_CASE("times and peaks have tolerances") {
  const Prediction p = prediction();
  Measurement m = measured(p);
  m.median_step_seconds = 0.09;  // predicted 11.1% more
  CHECK(compare(p, m, {.time = 0.12, .memory = 0}).within);
  CHECK_FALSE(compare(p, m, {.time = 0.11, .memory = 0}).within);
  m = measured(p);
  m.ranks[1].peak_allocated_bytes = 200;  // predicted 5% less for that rank
  const ValidationReport r = compare(p, m, {.time = 0.1, .memory = 0.01});
  CHECK(r.peak.what == "peak allocated, rank 1");
  CHECK(r.peak.error() == relative(-0.05));
  CHECK_FALSE(r.within);
  CHECK(compare(p, m, {.time = 0.1, .memory = 0.06}).within);
}

TEST_CASE("what was made of something else is not compared") {
  const Prediction p = prediction();
  const auto refused = [&](auto change, const char* words) {
    Measurement m = measured(p);
    change(m);
    CHECK_THROWS_WITH_AS((void)compare(p, m), doctest::Contains(words), InputError);
  };
  refused([](Measurement& m) { m.provenance.model_digest = "m2"; }, "another model");
  refused([](Measurement& m) { m.provenance.plan_digest = "p2"; }, "another plan");
  refused([](Measurement& m) { m.provenance.implementation = "torchtitan"; }, "--implementation torchtitan");
  refused([](Measurement& m) { m.ranks[1].rank = 0; }, "rank 0 is unexpected or there twice");
  refused([](Measurement& m) { m.ranks[1].rank = 2; }, "rank 2 is unexpected");
  Prediction bare = p;
  bare.order.clear();
  CHECK_THROWS_AS((void)compare(bare, measured(p)), InputError);
}

TEST_CASE("a rank that was not measured, or not predicted, is a difference") {
  Prediction p = prediction();
  Measurement m = measured(p);
  m.ranks.pop_back();
  const ValidationReport r = compare(p, m);
  CHECK_FALSE(r.order_equal);
  CHECK_FALSE(r.within);
  CHECK(mentions(r, "1 ranks were measured, the plan has 2"));
  m = measured(p);
  p.role_of_rank.clear();  // only rank 0 is known
  CHECK(mentions(compare(p, m), "rank 1: no memory was predicted"));
  p.roles = 1;  // ... or all are alike
  CHECK(memory_of(p, 1) == &p.memory);
  CHECK(memory_of(p, 2) == nullptr);
}

namespace {

bool finds(const ValidationReport& r, const std::string& words) {
  for (const Finding& f : r.findings)
    if (f.text.find(words) != std::string::npos) return true;
  return false;
}

// Two ranks that did what was predicted: 60 ms of products, 20 ms of all-gathers of which 10 are exposed.
Prediction with_times() {
  Prediction p = prediction();
  p.by_unit = {{{0, "a"}, 0.04, 0.012}, {{1, "b"}, 0.02, 0.008}};
  p.where.compute = Seconds(0.06);
  p.where.exposed_all_gather = Seconds(0.01);
  p.where.idle = Seconds(0.03);
  return p;
}

Measurement as_predicted(const Prediction& p) {
  Measurement m = measured(p);
  m.by_action = p.by_action;
  for (RankMeasurement& r : m.ranks) {
    r.by_action = p.by_action;
    r.by_unit = p.by_unit;
    r.where = p.where;
  }
  return m;
}

}  // namespace

TEST_CASE("times as predicted: rows of every kind, and nothing to say") {
  const Prediction p = with_times();
  const ValidationReport r = compare(p, as_predicted(p));
  CHECK(r.findings.empty());
  CHECK(r.not_compared.empty());
  REQUIRE(r.by_unit.size() == 4);
  for (const CompareRow& row : r.by_unit) CHECK(std::abs(row.error()) < 1e-12);
  REQUIRE(r.by_rank.size() == 4);
  CHECK(r.by_rank[3].what == "rank 1, collectives");
  CHECK(r.by_rank[3].measured == relative(0.02));
  CHECK(r.where.size() == 3);
}

TEST_CASE("an op kind that is slower on every rank, or on one, is told apart") {
  const Prediction p = with_times();
  Measurement m = as_predicted(p);
  for (RankMeasurement& r : m.ranks) r.by_action[0].seconds *= 1.5;
  CHECK(finds(compare(p, m), "forward linear takes 50 % longer than predicted on every rank (+30.0 ms)"));
  m.ranks[0].by_action[0].seconds = p.by_action[0].seconds;
  const ValidationReport r = compare(p, m);
  CHECK(finds(r, "forward linear takes 25 % longer than predicted on some ranks"));
  CHECK(finds(r, "rank 1 is late: its kernels take 50 % longer"));
  CHECK(r.findings[0].seconds >= r.findings[1].seconds);
}

TEST_CASE("exposed communication, idle time and slow collectives are named") {
  const Prediction p = with_times();
  Measurement m = as_predicted(p);
  for (RankMeasurement& r : m.ranks) {
    r.where->exposed_all_gather = Seconds(0.025);
    r.where->idle = Seconds(0.04);
    r.by_action[1].seconds = 0.05;
    r.by_unit[1].communication_seconds = 0.038;
  }
  const ValidationReport r = compare(p, m);
  CHECK(finds(r, "communication is more exposed than predicted (+15.0 ms of 25.0 ms)"));
  CHECK(finds(r, "stands still longer than predicted with nothing else running (+10.0 ms)"));
  CHECK(finds(r, "all_gather takes 150 % longer than predicted (+30.0 ms, waiting for other ranks included)"));
  CHECK(r.by_unit[0].what == "unit 1 (b), collectives");
  CHECK(r.by_unit[0].measured == relative(0.038));
}

TEST_CASE("what an earlier version did not write is said to be not compared") {
  const ValidationReport r = compare(prediction(), measured(prediction()));
  CHECK(r.not_compared.size() == 3);  // units, exposed communication, ranks
  CHECK(r.by_unit.empty());
  CHECK_FALSE(r.by_action.empty());  // of rank 0, as before
}
