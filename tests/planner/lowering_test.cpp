// Order, counts and memory of lowered programs against FSDP2's documented behaviour: the orders that PyTorch's own comm
// tests assert (test_fully_shard_comm.py: backward prefetch, set_modules_to_*_prefetch) and the collective counts of
// test_fully_shard_communication_count and test_gradient_accumulation.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/lowering/step/step_builder.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

const Implementation& native() { return find_implementation("native", false, "test"); }

std::string unit_name(std::int32_t u, const ShardingPlan& plan) {
  const std::string& m = plan.units[static_cast<std::size_t>(u)].modules[0];
  return m.empty() ? "r" : m.substr(m.find('.') + 1);
}

// "u(x)": an all-gather is issued; "f(x)": the unsharded parameters are freed; "p(x)": its reduce-scatter is issued.
std::string events(const Program& program, const ShardingPlan& plan, bool frees) {
  std::string out;
  const Step& step = program.steady_step;
  const auto add = [&](const char* what, std::int32_t u) {
    out += (out.empty() ? "" : " ") + std::string(what) + "(" + unit_name(u, plan) + ")";
  };
  for (const Operation& op : step.ops) {
    if (op.action == Action::all_gather) add("u", op.unit);
    if (op.action == Action::reduce_scatter) add("p", op.unit);
    std::int32_t last = -1;
    for (std::int32_t b : step.frees_of(op)) {
      const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
      if (frees && buffer.kind == BufferKind::unsharded_parameter && buffer.unit != last) add("f", last = buffer.unit);
    }
  }
  return out;
}

std::map<Action, int> counts(const Program& program) {
  std::map<Action, int> n;
  for (const Operation& op : program.steady_step.ops) ++n[op.action];
  return n;
}

// Explicit prefetch lists: block -> blocks; PyTorch's defaults elsewhere.
ShardingPlan with_lists(ShardingPlan plan, const std::map<int, std::vector<int>>& forward,
                        const std::map<int, std::vector<int>>& backward) {
  plan.forward_prefetch = 0;
  plan.backward_prefetch = 1;
  const auto set = [](std::vector<std::string>& list, const std::vector<int>& blocks) {
    for (const int b : blocks) list.push_back("layers." + std::to_string(b));
  };
  for (const auto& [block, targets] : forward)
    set(plan.units[static_cast<std::size_t>(block)].forward_prefetch, targets);
  for (const auto& [block, targets] : backward)
    set(plan.units[static_cast<std::size_t>(block)].backward_prefetch, targets);
  return plan;
}

ShardingPlan with_reshard(ShardingPlan plan, Reshard r) {
  for (Unit& u : plan.units) u.reshard_after_forward = r;
  return plan;
}

}  // namespace

TEST_CASE("a unit as long as the root comes after it: in forward, and among the reductions of the final callback") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = toy::plan(model, 4);
  plan.units = {
      {{"layers.1"}, Reshard::automatic}, {{"embed", "head"}, Reshard::automatic}, {{""}, Reshard::automatic}};
  CHECK(events(lower(model, plan, native()), plan, false) == "u(r) u(embed) u(1) u(embed) u(1) p(1) p(r) p(embed)");
  plan.forward_prefetch = 1;  // the root's target is the unit after it, that unit's the block
  CHECK(events(lower(model, plan, native()), plan, false) == "u(r) u(embed) u(1) u(embed) u(1) p(1) p(r) p(embed)");
}

TEST_CASE("order of collectives, as PyTorch's prefetch tests assert it") {
  const ModelGraph three = toy::model({.blocks = 3}), four = toy::model({.blocks = 4});
  const ShardingPlan base = toy::plan(three, 4);
  CHECK(events(lower(three, base, native()), base, false) == "u(r) u(0) u(1) u(2) u(2) u(1) p(2) u(0) p(1) p(0) p(r)");
  const ShardingPlan yes = with_reshard(base, Reshard::yes), no = with_reshard(base, Reshard::no);
  CHECK(events(lower(three, yes, native()), yes, false) ==
        "u(r) u(0) u(1) u(2) u(r) u(2) u(1) p(2) u(0) p(1) p(0) p(r)");
  CHECK(events(lower(three, no, native()), no, false) == "u(r) u(0) u(1) u(2) p(2) p(1) p(0) p(r)");
  const ShardingPlan two = with_reshard(base, Reshard{2});
  CHECK(events(lower(three, two, native()), two, false) == events(lower(three, yes, native()), yes, false));

  ShardingPlan deep = with_reshard(toy::plan(four, 2), Reshard::yes);
  const std::string backward = " u(r) u(3) u(2) f(3) p(3) u(1) f(2) p(2) u(0) f(1) p(1) f(0) p(0) f(r) p(r)";
  CHECK(events(lower(four, deep, native()), deep, true) ==
        "u(r) u(0) f(0) u(1) f(1) u(2) f(2) u(3) f(3) f(r)" + backward);
  // The lists of PyTorch's forward prefetch test name blocks only: block i prefetches i+1 (.. i+k). Our plan's depth
  // also applies to the root, whose list would be [0 ..]; so the root's gather is followed at once by block 0's (and
  // 1's).
  deep.forward_prefetch = 1;
  CHECK(events(lower(four, deep, native()), deep, true) ==
        "u(r) u(0) u(1) f(0) u(2) f(1) u(3) f(2) f(3) f(r)" + backward);
  deep.forward_prefetch = 2;
  CHECK(events(lower(four, deep, native()), deep, true) ==
        "u(r) u(0) u(1) u(2) f(0) u(3) f(1) f(2) f(3) f(r)" + backward);
  deep.forward_prefetch = 0;
  deep.backward_prefetch = 2;
  const std::string backward_2 = " u(r) u(3) u(2) u(1) f(3) p(3) u(0) f(2) p(2) f(1) p(1) f(0) p(0) f(r) p(r)";
  CHECK(events(lower(four, with_lists(deep, {}, {{3, {2, 1}}, {2, {1, 0}}, {1, {0}}}), native()), deep, true) ==
        "u(r) u(0) f(0) u(1) f(1) u(2) f(2) u(3) f(3) f(r)" + backward_2);
  CHECK(events(lower(four, with_lists(deep, {{0, {1, 2}}, {1, {2, 3}}, {2, {3}}}, {}), native()), deep, true)
            .starts_with("u(r) u(0) u(1) u(2) f(0) u(3) f(1) f(2) f(3) f(r)"));
  deep.backward_prefetch = 0;
  CHECK(events(lower(four, deep, native()), deep, false) ==
        "u(r) u(0) u(1) u(2) u(3) u(r) u(3) p(3) u(2) p(2) u(1) p(1) u(0) p(0) p(r)");
}

TEST_CASE("a step has the collectives that reshard mode and gradient sync say") {
  const int B = 3;
  const ModelGraph model = toy::model({.blocks = B});
  struct Case {
    Reshard reshard;
    int all_gathers;
  };
  for (const Case c : {Case{Reshard::automatic, 2 * B + 1}, Case{Reshard::yes, 2 * B + 2}, Case{Reshard::no, B + 1}}) {
    for (const int micro_batches : {1, 3}) {
      for (const GradSync sync : {GradSync::every, GradSync::last, GradSync::reduce_scatter_only}) {
        for (const std::int64_t replicate : {1, 2}) {
          if (sync == GradSync::reduce_scatter_only && replicate == 1) continue;
          CAPTURE(name(c.reshard));
          CAPTURE(micro_batches);
          CAPTURE(name(sync));
          CAPTURE(replicate);
          ShardingPlan plan = with_reshard(toy::plan(model, 2, replicate), c.reshard);
          plan.micro_batches.assign(static_cast<std::size_t>(micro_batches), 2);
          plan.grad_sync = sync;
          const Program program = lower(model, plan, native());
          auto n = counts(program);
          CHECK(n[Action::all_gather] == c.all_gathers * micro_batches);
          const int reductions = (B + 1) * (sync == GradSync::last ? 1 : micro_batches);
          CHECK(n[Action::reduce_scatter] == reductions);
          CHECK(n[Action::all_reduce] == (replicate == 1 ? 0 : sync == GradSync::every ? reductions : B + 1));
          CHECK(find_races(program).empty());
        }
      }
    }
  }
  ShardingPlan one = toy::plan(model, 1);
  auto n = counts(lower(model, one, native()));
  CHECK(n[Action::all_gather] == 0);
}

TEST_CASE("activation checkpointing recomputes up to the last op that backward needs, and adds no collective") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = toy::plan(model, 2);
  const auto without = counts(lower(model, plan, native()));
  plan.checkpointed = {"layers.0", "layers.1"};
  const Program program = lower(model, plan, native());
  auto with = counts(program);
  // Per block: up (gelu saves its input) and gelu (down saves its input) run again; down and add do not.
  CHECK(with[Action::recompute] == 4);
  CHECK(with[Action::all_gather] == without.at(Action::all_gather));
  CHECK(find_races(program).empty());
}

TEST_CASE("memory of a sharded toy step, derived by hand") {
  // W = 2, fp32, one block of 6 -> 10 -> 6 (weights 60 + 60), root: embedding 11 x 6 and head 11 x 6 (chunks of 6
  // rows).
  const ModelGraph model = toy::model({.blocks = 1});
  const ShardingPlan plan = toy::plan(model, 2);
  const Program program = lower(model, plan, native());
  const ProgramMemory memory = replay_memory(program);
  const std::int64_t block_shard = 60, root_shard = 2 * 6 * 6;  // padded elements on one rank
  CHECK(memory.init.points.back().after == 4 * (block_shard + root_shard));
  // After the first step: parameters, gradients, two Adam states; rank 0 holds 6 of 11 rows, as many as are stored
  // padded.
  CHECK(memory.steady_step.start == 4 * 4 * (block_shard + root_shard));
  CHECK(memory.steady_step.points.back().after == memory.steady_step.start);
  // Rank 1 holds 5 of the 11 rows: its Adam states are smaller by 2 parameters * 1 row * 6 * 2 states.
  CHECK(replay_memory(lower(model, plan, native(), 1)).steady_step.start == memory.steady_step.start - 4 * 2 * 6 * 2);
  std::int64_t parts = 0;
  for (std::int64_t p : memory.at_peak) parts += p;
  CHECK(parts == memory.peak);
}

TEST_CASE("the peak is that of all three steps, not of the steady one alone") {
  // One buffer of 40 B that stays, and one of 1000 B that lives only in `wanted`: the peak is 1040 B, there.
  for (int wanted = 0; wanted < 3; ++wanted) {
    CAPTURE(wanted);
    Program program;
    program.buffers.resize(2);
    program.buffers[0].bytes = 40;
    program.buffers[1].bytes = 1000;
    Step* steps[] = {&program.init, &program.first_step, &program.steady_step};
    for (int s = 0; s < 3; ++s) {
      StepBuilder b(program, *steps[s]);
      if (s == 0) b.allocate(0);
      if (s == wanted) b.allocate(1);
      b.issue(operation(Action::load_batch), {});
      if (s == wanted) b.release(1);
    }
    const ProgramMemory memory = replay_memory(program);
    CHECK(memory.peak == 1040);
    CHECK(memory.peak_step == wanted);
    CHECK(memory.steady_step.peak() == (wanted == 2 ? 1040 : 40));
  }
}

TEST_CASE("closed-form bound on the peak: four group-sized buffers in backward") {
  // PyTorch test_fully_shard_memory: states + root + 4 x largest group (+ activations) bounds the backward peak with
  // resharding.
  const ModelGraph model = toy::model({.blocks = 6, .vocab = 8, .width = 64, .hidden = 256});
  ShardingPlan plan = toy::plan(model, 2);
  plan.micro_batches = {1};
  plan.seq_len = 1;
  const ProgramMemory memory = replay_memory(lower(model, plan, native()));
  const std::int64_t block = 4 * 2 * 64 * 256, root = 4 * 2 * 8 * 64, all = 6 * block + root;
  const std::int64_t activations = 4 * (6 * (3 * 64 + 3 * 256) + 16 * 8 + 1024);
  CHECK(memory.steady_step.peak() <= 4 * all / 2 + 4 * block + 3 * root + activations);
  CHECK(memory.steady_step.peak() >= 4 * all / 2 + 3 * block);
}

TEST_CASE("properties on generated plans: race-free with an arena, closed memory, every gather buffer freed") {
  std::mt19937 random(20261120);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 200; ++trial) {
    CAPTURE(trial);
    const ModelGraph model = toy::model({.blocks = 1 + pick(5),
                                         .vocab = 5 + pick(9),
                                         .width = 3 + pick(9),
                                         .hidden = 4 + pick(9),
                                         .tied = pick(2) == 0});
    ShardingPlan plan = toy::plan(model, 1 + pick(4), 1 + pick(3));
    for (Unit& u : plan.units) u.reshard_after_forward = static_cast<Reshard>(pick(3));
    if (pick(3) == 0 && plan.units.size() > 2) {  // group the first two blocks
      plan.units[0].modules.push_back(plan.units[1].modules[0]);
      plan.units.erase(plan.units.begin() + 1);
    }
    plan.micro_batches.clear();
    for (int m = 1 + pick(3); m > 0; --m) plan.micro_batches.push_back(1 + pick(3));
    plan.grad_sync = static_cast<GradSync>(pick(plan.replicate() > 1 ? 3 : 2));
    plan.forward_prefetch = pick(3);
    plan.backward_prefetch = pick(3);
    if (pick(2)) plan.param_dtype = DType::bf16;
    if (pick(2)) plan.reduce_dtype = DType::bf16;
    if (pick(2)) plan.clip_norm = 1.0;
    if (pick(3) == 0) plan.checkpointed = {"layers.0"};
    if (pick(5) == 0) {
      plan.dialect = Dialect::ddp;
      plan.mesh = {{"replicate", 3}};
      plan.param_dtype = plan.reduce_dtype = plan.master_dtype = DType::f32;
      if (plan.grad_sync == GradSync::reduce_scatter_only) plan.grad_sync = GradSync::every;
    }
    const Implementation& impl = pick(2) ? native() : find_implementation("torchtitan", false, "test");
    Program program = lower(model, plan, impl, pick(static_cast<int>(plan.ranks())));
    const ProgramMemory memory = replay_memory(program);
    assign_arena(program);
    CHECK(program.arena_bytes >= memory.peak);
    const auto races = find_races(program);
    if (!races.empty())
      FAIL("race: " << races[0].rule << " step " << races[0].step << " ops " << races[0].earlier << " "
                    << races[0].later << " buffer " << races[0].buffer);
    std::set<std::int32_t> gathers;
    for (const Operation& op : program.steady_step.ops) {
      for (std::int32_t b : program.steady_step.allocs_of(op))
        if (program.buffers[static_cast<std::size_t>(b)].kind == BufferKind::gather) gathers.insert(b);
      for (std::int32_t b : program.steady_step.frees_of(op)) gathers.erase(b);
    }
    CHECK(gathers.empty());
  }
}
