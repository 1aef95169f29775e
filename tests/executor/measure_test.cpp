// How long a run measures, what it keeps, and what it says of the machine. Nothing here depends on how long a step
// takes.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "executor/training/machine.h"
#include "executor/training/step_log.h"
#include "models/input/error.h"
#include "simulator/records/step_statistics.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

StepRecord record(double seconds, double loss) {
  StepRecord r;
  r.operations.resize(10);
  r.memory.points = {{8, 4}};
  r.seconds = seconds;
  r.loss = loss;
  return r;
}

}  // namespace

TEST_CASE("a log keeps every time and loss, and few whole records, evenly") {
  StepLog log(3, 10);
  constexpr std::size_t kSteps = 10'000;
  for (std::size_t i = 0; i < kSteps; ++i) {
    log.add(record(static_cast<double>(i), -static_cast<double>(i)));
    CHECK_UNARY(log.kept().size() <= 64);
  }
  REQUIRE(log.size() == kSteps);
  CHECK(log.seconds()[4711] == 4711);
  CHECK(log.losses()[4711] == -4711);
  CHECK(log.memory().points.size() == 1);
  REQUIRE(log.kept().size() >= 32);
  const std::size_t stride = log.kept()[1].step - log.kept()[0].step;
  CHECK(log.kept()[0].step == 3);
  for (std::size_t i = 0; i < log.kept().size(); ++i) CHECK_UNARY(log.kept()[i].step == 3 + i * stride);
  for (const StepLog::Kept& k : log.kept())
    CHECK_UNARY(k.record.seconds == static_cast<double>(k.step) && k.record.memory.points.empty());
  CHECK(3 + log.kept().size() * stride >= kSteps);  // to the end
  // The nearest of those that are kept.
  const double wanted = 5000;
  const StepLog::Kept& near = log.nearest(log.seconds(), 3, wanted);
  CHECK(std::abs(static_cast<double>(near.step) - wanted) <= static_cast<double>(stride) / 2);
  CHECK(log.nearest(log.seconds(), 9000, 0).step >= 9000);
  CHECK_THROWS_AS((void)log.nearest(log.seconds(), kSteps, 0), MachineError);
}

TEST_CASE("long steps keep fewer records; short runs keep all") {
  StepLog few(0, std::size_t{1} << 30), all(2, 10);
  for (int i = 0; i < 100; ++i) few.add(record(i, 0));
  CHECK(few.kept().size() <= 4);
  CHECK(few.kept().size() >= 2);
  for (int i = 0; i < 30; ++i) all.add(record(i, 0));
  CHECK(all.kept().size() == 28);
}

TEST_CASE("a run of many steps: every loss and time, a median step, and no memory per step") {
  const ModelGraph model = small_llama({.layers = 1});
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  RunOptions o;
  o.warmup_steps = 3;
  o.steps = 400;
  std::vector<std::int64_t> resident;
  o.progress = [&](const StepReport& s) {
    if (s.done % 100 == 0) resident.push_back(process_memory(0).heap_bytes);
  };
  const Measurement m = execute(model, plan, o).measurement;
  CHECK(m.losses.size() == 403);
  CHECK(m.step_seconds.size() == 400);
  REQUIRE(m.steps.has_value());
  CHECK(m.steps->warmup_steps == 3);
  CHECK(m.steps->stopped == "400 steps, as asked");
  CHECK(m.steps->p10_seconds <= m.median_step_seconds);
  CHECK(m.steps->p90_seconds >= m.median_step_seconds);
  CHECK(m.steps->independent_steps > 0);
  for (const RankMeasurement& r : m.ranks) {
    CHECK(r.timeline.duration > 0);
    CHECK_FALSE(r.by_action.empty());
    CHECK_FALSE(r.by_unit.empty());
    REQUIRE(r.where.has_value());
    CHECK(r.arena_resident_bytes.value() <= r.arena_bytes.value() + 4096);
    CHECK(r.arena_resident_bytes.value() >= r.peak_allocated_bytes / 2);
  }
  REQUIRE(resident.size() == 4);
  CHECK(resident[3] - resident[1] < 1 << 20);  // 200 steps; one whole record is some 20 KiB
}

TEST_CASE("until the noise is small: it stops when told so, at the latest at the most steps") {
  const ModelGraph model = small_llama({.layers = 1});
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  RunOptions o;
  o.warmup_steps = 2;
  o.steps = 5000;
  o.until_noise = 9.0;  // always good enough once there is an interval and the median has settled
  const Measurement soon = execute(model, plan, o).measurement;
  REQUIRE(soon.steps.has_value());
  CHECK(soon.losses.size() < 5001);
  CHECK(soon.steps->stopped.find("the median is known to 900 %") == 0);
  CHECK(median_uncertainty(soon.step_seconds) <= 9.0);
  CHECK(settled_after(soon.step_seconds).has_value());
  CHECK(soon.losses.size() == static_cast<std::size_t>(soon.steps->warmup_steps) + soon.step_seconds.size());
  o.steps = 21;
  o.until_noise = 1e-12;  // never
  const Measurement most = execute(model, plan, o).measurement;
  CHECK(most.losses.size() == 23);
  CHECK(most.steps->stopped == "21 steps, the most allowed");
  o.steps = 7;
  CHECK_THROWS_AS((void)execute(model, plan, o), InputError);
  o.steps = 50;
  o.until_noise = 0;
  CHECK_THROWS_AS((void)execute(model, plan, o), InputError);
}

TEST_CASE("memory of a process: its parts sum, and touched pages are seen") {
  constexpr std::int64_t kBytes = 8 << 20;
  auto* bytes =
      static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(static_cast<void*>(bytes) != MAP_FAILED);
  ::madvise(bytes, kBytes, MADV_NOHUGEPAGE);
  CHECK(resident_bytes(bytes, kBytes) == 0);
  for (std::int64_t i = 0; i < kBytes / 2; i += 4096) bytes[i] = std::byte{1};
  CHECK(resident_bytes(bytes, kBytes) == kBytes / 2);
  CHECK(resident_bytes(bytes, 0) == 0);
  CHECK(resident_bytes(nullptr, 10) == 0);
  const ProcessMemory m = process_memory(resident_bytes(bytes, kBytes));
  CHECK(m.arenas_bytes == kBytes / 2);
  CHECK(m.arenas_bytes + m.heap_bytes + m.code_bytes + m.rest_bytes == m.resident_bytes);
  CHECK(m.high_water_bytes >= m.resident_bytes);
  CHECK(m.rest_bytes >= 0);
  ::munmap(bytes, kBytes);
}

TEST_CASE("the machine is named, and what this process takes of it is counted") {
  const MachineWatch watch;
  volatile double x = 1;
  for (int i = 0; i < 20'000'000; ++i) x = x * 1.0000001;
  const MachineState s = watch.finish("library", "x86-64-v3");
  CHECK_FALSE(s.processor.empty());
  CHECK(s.libraries == "library");
  CHECK(s.instructions == "x86-64-v3");
  CHECK(s.date.ends_with("UTC"));
  CHECK(s.cores >= 1);
  CHECK(s.usable_cores >= 1);
  CHECK(s.wall_seconds > 0);
  REQUIRE(s.own_cores.has_value());
  CHECK(*s.own_cores > 0);
}

TEST_CASE("one rank is asked to stop: all ranks end after the same step, which `after_step` sees as the last one") {
  const ModelGraph model = small_llama({.layers = 1});
  const ShardingPlan plan = make_plan(model, {.shard = 2});
  for (const int asked : {1, 2, 3, 7}) {  // the rank's steps: warm-up takes four
    CAPTURE(asked);
    RunOptions o;
    o.warmup_steps = 4;
    o.steps = 20;
    std::atomic<int> calls{0}, steps{0}, last{0};
    o.asked_to_stop = [&, twice = asked * 2 - 3] { return std::string(calls++ == std::max(0, twice) ? "a test" : ""); };
    o.after_step = [&](const RankState& s) {
      if (s.device.rank() == 0) ++steps;
      if (s.last) last += static_cast<int>(s.steps_done);
    };
    const RunResult r = execute(model, plan, o);
    const int ended = std::max(2, asked);
    CHECK(steps == ended);
    CHECK(last == 2 * ended);
    REQUIRE(r.early_stop.has_value());
    CHECK(*r.early_stop == EarlyStop{"a test", ended, 24});
    const Measurement& m = r.measurement;
    CHECK(m.early_stop == r.early_stop);
    CHECK(m.losses.size() == static_cast<std::size_t>(ended));
    CHECK(m.step_seconds.size() == static_cast<std::size_t>(ended > 4 ? ended - 4 : 1));
    REQUIRE(m.steps.has_value());
    CHECK(m.steps->warmup_steps + static_cast<std::int64_t>(m.step_seconds.size()) == ended);
    CHECK(m.steps->settled == (ended > 4));
    CHECK(m.ranks.front().timeline.duration > 0);
    CHECK(parse_measurement(to_json_text(m), "a test").early_stop == m.early_stop);
  }
}

TEST_CASE("a run that is asked to stop in its last step has done what it should") {
  const ModelGraph model = small_llama({.layers = 1});
  RunOptions o;
  o.warmup_steps = 1;
  o.steps = 1;
  o.asked_to_stop = [] { return std::string("a test"); };
  const RunResult r = execute(model, make_plan(model, {.shard = 2}), o);
  CHECK_FALSE(r.early_stop.has_value());
  CHECK(r.measurement.steps->stopped == "1 step, as asked");
}
