// The engine against closed forms.
#include "simulator/engine/engine.h"

#include <doctest/doctest.h>

#include <random>

#include "models/implementation.h"
#include "planner/lower.h"
#include "tests/support/relative.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

Demand seconds(double s) {
  Demand d;
  d.alone = Seconds(s);
  return d;
}

Demand uses(double s, Resource r, double fraction, bool holds = false) {
  Demand d = seconds(s);
  d.use[static_cast<std::size_t>(r)] = fraction;
  d.holds_compute = holds;
  return d;
}

std::vector<double> rates(const std::vector<Demand>& demands) {
  std::vector<const Demand*> pointers;
  for (const Demand& d : demands) pointers.push_back(&d);
  std::vector<double> r(demands.size());
  share_rates(pointers, r);
  return r;
}

}  // namespace

TEST_CASE("max-min shares") {
  const auto memory = [](double f) { return uses(1, Resource::memory, f); };
  CHECK(rates({memory(0.4), memory(0.5)}) == std::vector<double>{1, 1});
  // 0.8 r + 0.8 r = 1 -> r = 0.625 each.
  CHECK(rates({memory(0.8), memory(0.8)})[0] == relative(0.625));
  // The small one rises with the big one until memory is full: 0.2 r + 1.0 r = 1 -> r = 1 / 1.2 each (rates, not
  // shares, are equal).
  CHECK(rates({memory(0.2), memory(1.0)})[0] == relative(1 / 1.2));
  // A collective holds 24 of 132 SMs and runs at full speed; a kernel that wants all of them gets 108 / 132.
  const auto r = rates({uses(1, Resource::compute, 1.0), uses(1, Resource::compute, 24.0 / 132, true)});
  CHECK(r[1] == relative(1.0));
  CHECK(r[0] == relative(108.0 / 132));
  // Different resources do not disturb one another.
  CHECK(rates({memory(1.0), uses(1, Resource::intra_link, 1.0)}) == std::vector<double>{1, 1});
}

TEST_CASE(
    "a collective keeps a stated part of its speed beside kernels, in the measure in which they fill the machine") {
  Demand slowed = uses(1, Resource::compute, 16.0 / 128, true);
  slowed.use[static_cast<std::size_t>(Resource::memory)] = 0.4;
  slowed.beside = 0.5;
  const double alone = rates({slowed})[0], full = rates({slowed, uses(1, Resource::compute, 1.0)})[0],
               half = rates({slowed, uses(1, Resource::memory, 0.5)})[0];
  CHECK(alone == 1);
  CHECK(full == relative(0.5));
  CHECK(half == relative(0.75));
  // It holds as many multiprocessors as before and moves half as much memory: (1 - 1/8) (1 - 0.65 * 0.2).
  CHECK(rates({slowed, uses(1, Resource::compute, 1.0)})[1] == relative(0.875 * 0.87));
  // What is bound by memory feels as much of it: (1 - 1/8) (1 - 0.2).
  CHECK(rates({slowed, uses(1, Resource::memory, 1.0)})[1] == relative(0.875 * 0.8));
}

TEST_CASE("the host waits while 1024 launches wait in a stream") {
  Program program;
  Step& step = program.steady_step;
  std::vector<Demand> demands;
  for (int i = 0; i < 3000; ++i) {
    Operation o;
    o.action = Action::forward;
    o.stream = i % 3 == 2 ? Stream::copy_in : Stream::compute;  // 2000 launches here, 1000 there
    step.ops.push_back(o);
    demands.push_back(seconds(1));
    demands.back().launches = i % 3 == 2 ? 1 : 2;
  }
  const Timeline t = simulate(step, demands, {.share = false, .steps = 1});
  CHECK(t.duration == 2000);
  CHECK(t.issued[0] == 0);
  // 512 operations of two launches fill the queue: the next one is issued as the first of them ends.
  const auto compute = [](int n) { return static_cast<std::size_t>(n / 2 * 3 + n % 2); };
  CHECK(t.issued[compute(511)] == 0);
  CHECK(t.issued[compute(512)] == 1);
  CHECK(t.issued[compute(1511)] == 1000);
  // An event that another stream waits for takes a place, and so does the wait.
  Step waiting = step;
  waiting.ops.back().waits = {0, 1};
  waiting.waits = {0};
  const Timeline w = simulate(waiting, demands, {.share = false, .steps = 1});
  CHECK(w.issued[compute(510)] == 0);
  CHECK(w.issued[compute(511)] == 1);
  // Operations that take no place there are issued at once.
  for (Demand& d : demands) d.launches = 0;
  CHECK(simulate(step, demands, {.share = false, .steps = 1}).issued.back() == 0);
}

TEST_CASE("rates are feasible and bounded on generated cases") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> u(0, 1);
  for (int trial = 0; trial < 500; ++trial) {
    CAPTURE(trial);
    std::vector<Demand> demands(1 + random() % 5);
    for (Demand& d : demands) {
      for (double& f : d.use) f = random() % 2 ? u(random) : 0;
      d.holds_compute = random() % 4 == 0;
    }
    const auto r = rates(demands);
    for (double x : r) {
      CHECK(x > 0);
      CHECK(x <= 1 + 1e-9);
    }
    bool starved = false;
    for (double x : r) starved = starved || x <= 1e-3;
    for (std::size_t k = 0; k < kResources && !starved; ++k) {
      double load = 0;
      for (std::size_t i = 0; i < r.size(); ++i) load += r[i] * demands[i].use[k];
      CHECK(load <= 1 + 1e-9);
    }
  }
}

TEST_CASE("overlap of PyTorch's test_fully_shard_training_overlap, which only asserts 'faster than serial'") {
  // Three linears of 25 ms forward and 50 ms backward, every all-gather and reduce-scatter 10 ms on one communicator.
  // Forward: the first all-gather is exposed, the rest hides: 10 + 3 * 25 = 85. Root without parameters.
  // Backward with resharding: AG(2) is prefetched after... its pre-backward: exposed 10; AG(1) overlaps B(2); RS(2),
  // AG(0) overlap B(1); RS(1) overlaps B(0); RS(0) exposed: 10 + 3 * 50 + 10 = 170.
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = toy::plan(model, 2);
  for (Unit& u : plan.units) u.reshard_after_forward = Reshard::yes;
  const Program program = lower(model, plan, find_implementation("native", false, "test"));
  const Step& step = program.steady_step;
  std::vector<Demand> demands(step.ops.size());
  const auto root = static_cast<std::int32_t>(plan.units.size()) - 1;
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const Operation& op = step.ops[i];
    if (is_collective(op.action) && op.unit >= 0 && op.unit != root) demands[i] = seconds(0.010);
    if (op.graph_op < 0) continue;
    const Op& graph_op = model.ops[static_cast<std::size_t>(op.graph_op)];
    const std::string& module =
        graph_op.module < 0 ? "" : model.modules[static_cast<std::size_t>(graph_op.module)].name;
    if (graph_op.kind != OpKind::linear || module.find(".up") == std::string::npos) continue;
    demands[i] = seconds(op.action == Action::forward ? 0.025 : 0.050);
  }
  // Block 2 reshards after forward and is gathered again at once: its copy-in waits for nothing but C's order, so AG(2)
  // of backward starts right after the forward ends.
  const Timeline t = simulate(step, demands, {.share = false});
  CHECK(t.duration == relative(0.085 + 0.170).epsilon(1e-9));
}

TEST_CASE(
    "test_fully_shard_post_optim_event_overlap: the first gather of a step runs beside what the optimizer does not "
    "need") {
  // One gather of 20 ms, and 15 ms on the compute stream between the optimizer and the first kernel: 35 ms one after
  // the other, 20 where the gather waits for the optimizer alone.
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = toy::plan(model, 2);
  plan.units = {{{""}}};
  for (const bool event : {false, true}) {
    plan.loop.post_optim_event = event;
    const Program program = lower(model, plan, find_implementation("native", false, "test"));
    const Step& step = program.steady_step;
    std::vector<Demand> demands(step.ops.size());
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      if (step.ops[i].action == Action::all_gather) demands[i] = seconds(0.020);
      if (step.ops[i].action == Action::load_batch) demands[i] = seconds(0.015);
    }
    CHECK(simulate(step, demands, {.share = false}).duration == relative(event ? 0.020 : 0.035).epsilon(1e-9));
  }
}

TEST_CASE("a loss in parts with their output layer costs two gathers for each part where the layer reshards") {
  // TRL measured +49.7 % for 32 parts: with gathers of 10 ms and nothing else, 2 * 5, 5 and 1 of them.
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = toy::plan(model, 2);
  plan.units.insert(plan.units.end() - 1, Unit{{"head"}, Reshard::yes});
  plan.loss_chunks = 5;
  plan.loop.chunk_head = true;
  const auto head = static_cast<std::int32_t>(plan.units.size()) - 2;
  const auto step_of = [&] {
    const Program program = lower(model, plan, find_implementation("native", false, "test"));
    std::vector<Demand> demands(program.steady_step.ops.size());
    for (std::size_t i = 0; i < demands.size(); ++i)
      if (program.steady_step.ops[i].action == Action::all_gather && program.steady_step.ops[i].unit == head)
        demands[i] = seconds(0.010);
    return simulate(program.steady_step, demands, {.share = false}).duration;
  };
  CHECK(step_of() == relative(0.100).epsilon(1e-9));
  plan.units[static_cast<std::size_t>(head)].reshard_after_forward = Reshard::no;
  CHECK(step_of() == relative(0.050).epsilon(1e-9));
  plan.units[static_cast<std::size_t>(head)].reshard_after_backward = false;
  CHECK(step_of() == relative(0.010).epsilon(1e-9));
}

TEST_CASE(
    "laws: busiest stream <= step <= sum; more bandwidth never hurts without sharing; host-bound steps cost host "
    "time") {
  const ModelGraph model = toy::model({.blocks = 4});
  ShardingPlan plan = toy::plan(model, 2, 2);
  plan.micro_batches = {1, 2};
  const Program program = lower(model, plan, find_implementation("native", false, "test"));
  const Step& step = program.steady_step;
  std::mt19937 random(11);
  std::uniform_real_distribution<double> u(0, 1);
  for (int trial = 0; trial < 50; ++trial) {
    CAPTURE(trial);
    std::vector<Demand> demands(step.ops.size());
    double sum = 0;
    std::array<double, kStreams> busy{};
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      if (step.ops[i].host_only) continue;
      demands[i] = seconds(u(random));
      sum += demands[i].alone.count();
      busy[static_cast<std::size_t>(step.ops[i].stream)] += demands[i].alone.count();
    }
    const double period = simulate(step, demands, {.share = false}).duration;
    CHECK(period <= sum * (1 + 1e-9));
    for (double b : busy) CHECK(period >= b * (1 - 1e-9));
    std::vector<Demand> faster = demands;
    for (std::size_t i = 0; i < step.ops.size(); ++i)
      if (is_collective(step.ops[i].action)) faster[i] = seconds(demands[i].alone.count() / 2);
    CHECK(simulate(step, faster, {.share = false}).duration <= period * (1 + 1e-9));
    for (Demand& d : demands) d.use[static_cast<std::size_t>(Resource::memory)] = u(random);
    CHECK(simulate(step, demands).duration >= period * (1 - 1e-9));
  }
  std::vector<Demand> slow_host(step.ops.size());
  for (Demand& d : slow_host) d.host = Seconds(1e-5);
  CHECK(simulate(step, slow_host).duration == relative(1e-5 * static_cast<double>(step.ops.size())));
}

TEST_CASE("one communicator runs one collective at a time, whatever their streams") {
  Step step;
  for (const Stream s : {Stream::all_gather, Stream::reduce_scatter}) {
    Operation op;
    op.stream = s;
    op.comm = Communicator::shard;
    step.ops.push_back(op);
  }
  const std::vector<Demand> demands = {seconds(0.010), seconds(0.020)};
  CHECK(simulate(step, demands).duration == relative(0.030));
  step.ops[1].comm = Communicator::replicate;
  CHECK(simulate(step, demands).duration == relative(0.020));
}

TEST_CASE("the host runs ahead, and waits where it reads the loss") {
  // 10 ms of work issued in 1 ms, then 1 ms issued in 5 ms. Running ahead the device is never idle: 11 ms. When the
  // loss is read in between, the host is at 10 ms (it issued the first operation of the step while the one before it
  // ran out), the second is issued at 10 + 5, runs until 16, by which time the next step's first one has been issued:
  // 16 ms.
  Step step;
  for (const Action a : {Action::forward, Action::read_loss, Action::optimizer}) {
    Operation op;
    op.action = a;
    step.ops.push_back(op);
  }
  std::vector<Demand> demands = {seconds(0.010), seconds(0), seconds(0.001)};
  demands[0].host = Seconds(0.001);
  demands[2].host = Seconds(0.005);
  CHECK(simulate(step, demands).duration == relative(0.016));
  demands[1].host_after = Seconds(0.003);  // all of it later
  CHECK(simulate(step, demands).duration == relative(0.019));
  step.ops[1].action = Action::forward;
  CHECK(simulate(step, demands).duration == relative(0.011));
}

TEST_CASE("two runs give equal results") {
  const ModelGraph model = toy::model();
  const Program program = lower(model, toy::plan(model, 2), find_implementation("native", false, "test"));
  std::vector<Demand> demands(program.steady_step.ops.size(), uses(0.001, Resource::memory, 0.7));
  CHECK(simulate(program.steady_step, demands).duration == simulate(program.steady_step, demands).duration);
}

namespace {

struct HandMade {
  Step step;
  std::vector<Demand> demands;
  void add(Action action, Stream stream, Demand d, std::vector<std::int32_t> waits = {}) {
    Operation op;
    op.action = action;
    op.stream = stream;
    if (is_collective(action)) op.comm = Communicator::shard;
    op.waits = {static_cast<std::uint32_t>(step.waits.size()), static_cast<std::uint32_t>(waits.size())};
    step.waits.insert(step.waits.end(), waits.begin(), waits.end());
    step.ops.push_back(op);
    demands.push_back(d);
  }
  [[nodiscard]] Timeline run(int steps = 1) const { return simulate(step, demands, {.steps = steps}); }
};

Demand thread(double s, double wake, double beside) {
  Demand d = seconds(s);
  d.wake = Seconds(wake);
  d.wake_beside = Seconds(beside);
  return d;
}

}  // namespace

TEST_CASE("streams that are threads are woken, later if another one works") {
  HandMade alone;
  alone.add(Action::forward, Stream::compute, thread(1, 0.1, 0.5));
  alone.add(Action::gather_copy_in, Stream::copy_in, thread(1, 0.1, 0.5), {0});
  alone.add(Action::forward, Stream::compute, thread(1, 0.1, 0.5), {1});
  alone.add(Action::forward, Stream::compute, thread(1, 0.1, 0.5));  // follows at once
  const Timeline t = alone.run();
  CHECK(t.spans[0].end == relative(1));
  CHECK(t.spans[1].start == relative(1.1));
  CHECK(t.spans[1].end == relative(2.1));
  CHECK(t.spans[2].start == relative(2.2));
  CHECK(t.spans[3].start == relative(3.2));
  CHECK(t.spans[3].end == relative(4.2));
  HandMade beside;
  beside.add(Action::forward, Stream::compute, thread(1, 0.1, 0.5));
  beside.add(Action::gather_copy_in, Stream::copy_in, thread(1, 0.1, 0.5), {0});
  beside.add(Action::forward, Stream::compute, thread(5, 0.1, 0.5));
  CHECK(beside.run().spans[1].start == relative(1.5));
  CHECK(beside.run().spans[1].end == relative(2.5));  // no resource is shared
  // While it is woken it uses nothing: the kernel beside runs at full speed until then, and both at half speed after.
  for (Demand& d : beside.demands) d.use[static_cast<std::size_t>(Resource::compute)] = 1;
  CHECK(beside.run().spans[1].end == relative(3.5));
  CHECK(beside.run().spans[2].end == relative(7));
}

TEST_CASE("a thread that queues for the core gets it when the others stop") {
  HandMade h;
  h.add(Action::forward, Stream::compute, thread(1, 0.1, 5));
  h.add(Action::gather_copy_in, Stream::copy_in, thread(1, 0.1, 5), {0});
  h.add(Action::forward, Stream::compute, thread(2, 0.1, 5));
  const Timeline t = h.run();
  CHECK(t.spans[2].end == relative(3));
  CHECK(t.spans[1].start == relative(3.1));  // it would have been 6
  CHECK(t.spans[1].end == relative(4.1));
}

TEST_CASE("collectives wait for the slowest rank: a part of the time since ranks last met") {
  HandMade h;
  Demand meeting = seconds(1);
  meeting.skew = Seconds(0.1);
  meeting.skew_share = 0.5;
  meeting.skew_most = Seconds(3);
  h.add(Action::forward, Stream::compute, seconds(2));
  h.add(Action::all_gather, Stream::all_gather, meeting, {0});
  h.add(Action::all_gather, Stream::all_gather, meeting, {0});
  const Timeline t = h.run();
  CHECK(t.spans[1].start == relative(2));
  CHECK(t.spans[1].end == relative(2 + 0.1 + 0.5 * 2 + 1));
  CHECK(t.spans[2].end == relative(4.1 + 0.1 + 1));
  for (Demand& d : h.demands) d.skew_most = Seconds(0.75);
  CHECK(h.run().spans[1].end == relative(2 + 0.75 + 1));
}

TEST_CASE("a host that reads a number waits for what it has issued on that stream, and for nothing else") {
  // 10 s of work are issued at once. Without a read the next kernel follows at 10, as its 4 s of host time are over by
  // then; with one the host waits until 10 and issues it at 14. What the collective does is not waited for.
  HandMade h;
  h.add(Action::forward, Stream::compute, seconds(10));
  h.add(Action::all_gather, Stream::all_gather, seconds(30));
  Demand next = seconds(1);
  next.host = Seconds(4);
  h.add(Action::forward, Stream::compute, next);
  CHECK(h.run().spans[2].start == relative(10));
  h.demands[2].host_waits = true;
  CHECK(h.run().spans[2].start == relative(14));
  CHECK(h.run().spans[1].end == relative(30));
  CHECK(h.run().duration == relative(30));
  // A stream on which nothing was issued has nothing to wait for.
  HandMade first;
  first.add(Action::all_gather, Stream::all_gather, seconds(30));
  first.add(Action::forward, Stream::compute, h.demands[2]);
  CHECK(first.run().spans[1].start == relative(4));
}
