// The `fsdp1` dialect by hand and by law: rules of a plan, the flat layout, memory of a step derived in comments, the
// rate limiter, counts and properties on generated plans. What PyTorch itself does: planner_torch_fsdp1_test.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "models/implementation.h"
#include "planner/layout/flat.h"
#include "planner/lower.h"
#include "planner/program/stream_frees.h"
#include "planner/search.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "tests/support/any_plan.h"
#include "tests/support/refusal.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

const Implementation& native() { return find_implementation("native", false, "test"); }

ShardingPlan fsdp1(const ModelGraph& model, std::int64_t shard, std::int64_t replicate = 1) {
  ShardingPlan plan = toy::plan(model, shard, replicate);
  plan.dialect = Dialect::fsdp1;
  return plan;
}

// The same plan for PyTorch 1.13.
ShardingPlan& early(ShardingPlan& plan) {
  plan.torch = {1, 13};
  plan.use_orig_params = false;
  return plan;
}

std::size_t count(const Step& step, Action action) {
  return static_cast<std::size_t>(
      std::count_if(step.ops.begin(), step.ops.end(), [&](const Operation& o) { return o.action == action; }));
}

const Buffer& of(const Program& p, std::int32_t buffer) { return p.buffers[static_cast<std::size_t>(buffer)]; }

// Most bytes of one kind that are live at once in a step that starts without any.
std::int64_t most(const Program& p, const Step& step, BufferKind kind) {
  std::int64_t now = 0, peak = 0;
  for (const Operation& op : step.ops) {
    for (std::int32_t b : step.allocs_of(op)) now += of(p, b).kind == kind ? of(p, b).bytes : 0;
    peak = std::max(peak, now);
    for (std::int32_t b : step.frees_of(op)) now -= of(p, b).kind == kind ? of(p, b).bytes : 0;
  }
  return peak;
}

}  // namespace

TEST_CASE("rules: what FullyShardedDataParallel does not have is refused by name") {
  const ModelGraph model = toy::model({.blocks = 2});
  struct Rule {
    const char* says;
    void (*breaks)(ShardingPlan&);
  };
  const Rule rules[] = {
      {"units[0].modules: fsdp1 wraps one module at a time, and this unit has 2",
       [](ShardingPlan& p) { p.units[0].modules.push_back("layers.1"), p.units.erase(p.units.begin() + 1); }},
      {"units[1].reshard_after_forward: fsdp1 cannot reshard to 2 ranks",
       [](ShardingPlan& p) { p.units[1].reshard_after_forward = Reshard{2}; }},
      {"units[0].reshard_after_backward: ", [](ShardingPlan& p) { p.units[0].reshard_after_backward = false; }},
      {"units[0].unshard_in_backward: ", [](ShardingPlan& p) { p.units[0].unshard_in_backward = false; }},
      {"units[2].grad_sync: ", [](ShardingPlan& p) { p.units[2].grad_sync = GradSync::last; }},
      {"units[0].gradient_divide_factor: ", [](ShardingPlan& p) { p.units[0].gradient_divide_factor = 2; }},
      {"units[0].forward_prefetch: ", [](ShardingPlan& p) { p.units[0].forward_prefetch = {"layers.1"}; }},
      {"units[1].backward_prefetch: ", [](ShardingPlan& p) { p.units[1].backward_prefetch = {"layers.0"}; }},
      {"dialect: fsdp1 is known as it is in the newest PyTorch and in 1.13",
       [](ShardingPlan& p) {
         p.torch = {2, 1};
       }},
      {"use_orig_params: that came with PyTorch 2.0",
       [](ShardingPlan& p) {
         p.torch = {1, 13};
       }},
      {"mesh: replicas are not known of fsdp1 in PyTorch 1.13", [](ShardingPlan& p) { early(p).mesh[0].size = 2; }},
      {"forward_prefetch: prefetch in forward is not known of fsdp1 in PyTorch 1.13",
       [](ShardingPlan& p) { early(p).forward_prefetch = 1; }},
      {"offload: offload is not known of fsdp1 in PyTorch 1.13", [](ShardingPlan& p) { early(p).offload = true; }},
      {"offload_activations: offload of activations is not known of fsdp1 in PyTorch 1.13",
       [](ShardingPlan& p) { early(p).checkpointed = p.offload_activations = {"layers.0"}; }},
      {"ignored: ignored modules are not known of fsdp1 in PyTorch 1.13",
       [](ShardingPlan& p) { early(p).ignored = {"head"}; }},
      {"grad_sync: fsdp1 all-reduces over replicas",
       [](ShardingPlan& p) { p.grad_sync = GradSync::reduce_scatter_only; }},
      {"forward_prefetch: fsdp1 prefetches at most one unit, not 2", [](ShardingPlan& p) { p.forward_prefetch = 2; }},
      {"backward_prefetch: fsdp1 prefetches at most one unit, not 2", [](ShardingPlan& p) { p.backward_prefetch = 2; }},
      {"backward_post: there is no backward prefetch",
       [](ShardingPlan& p) { p.backward_prefetch = 0, p.backward_post = true; }},
      {"shard_dims: ",
       [](ShardingPlan& p) {
         p.shard_dims = {{"layers.0.up.weight", 1}};
       }},
      {"reduce_scatter_buffers: ", [](ShardingPlan& p) { p.reduce_scatter_buffers = 2; }},
      {"separate_reduce_scatter: ", [](ShardingPlan& p) { p.separate_reduce_scatter = true; }},
      {"force_sum_reduction: ", [](ShardingPlan& p) { p.force_sum_reduction = true; }},
      {"offload: fsdp1 without sharding",
       [](ShardingPlan& p) {
         p.offload = true, p.mesh = {{"replicate", 4}};
       }},
      {"grad_sync: fsdp1 cannot add up offloaded gradients",
       [](ShardingPlan& p) {
         p.offload = true, p.micro_batches = {1, 1};
       }},
      {"checkpointed: 'layers.0' holds the unit of 'layers.0.down': units that run again are not known of fsdp1 in "
       "PyTorch 1.13",
       [](ShardingPlan& p) {
         early(p).checkpointed = {"layers.0"}, p.units.insert(p.units.begin(), Unit{{"layers.0.down"}});
       }},
      {"checkpoint_policy: 'layers.0' is recomputed selectively and holds the unit of 'layers.0.down'",
       [](ShardingPlan& p) {
         p.checkpointed = {"layers.0"}, p.units.insert(p.units.begin(), Unit{{"layers.0.down"}});
         p.checkpoint_policy = CheckpointPolicy::selective_op;
       }},
      {"units[0].modules: 'layers.0.down' is ignored ('layers.0.down'), and fsdp1 ignores no module that it wraps",
       [](ShardingPlan& p) {
         p.ignored = {"layers.0.down"}, p.units.insert(p.units.begin(), Unit{{"layers.0.down"}});
       }},
  };
  CHECK_NOTHROW(check(fsdp1(model, 4), model));
  ShardingPlan of_1_13 = fsdp1(model, 4);
  CHECK_NOTHROW(check(early(of_1_13), model));
  for (const Rule& rule : rules) {
    CAPTURE(rule.says);
    ShardingPlan plan = fsdp1(model, 4);
    rule.breaks(plan);
    const std::string said = testing::refusal([&] { check(plan, model); });
    CHECK(said.starts_with(std::string("plan: ") + rule.says));
  }
  ModelGraph again = model;  // layers.0.up runs once more, after layers.1
  again.modules[static_cast<std::size_t>(again.find_module("layers.0.up"))].op_end = 6;
  ShardingPlan of_up = fsdp1(again, 4);
  of_up.units.insert(of_up.units.begin(), Unit{{"layers.0.up"}});
  CHECK_NOTHROW(check(of_up, again));
  of_up.forward_prefetch = 1;
  CHECK(testing::holds(testing::refusal([&] { check(of_up, again); }), "'layers.0.up' runs more than once"));
  of_up.forward_prefetch = 0;
  CHECK(testing::holds(testing::refusal([&] { check(early(of_up), again); }), "beside another PyTorch"));
  ModelGraph frozen = model;
  frozen.parameters[1].trainable = false;
  ShardingPlan of_frozen = fsdp1(frozen, 4);
  CHECK(testing::holds(testing::refusal([&] { check(early(of_frozen), frozen); }), "frozen parameters are not known"));
  CHECK(testing::holds(testing::refusal([&] { check(fsdp1(frozen, 4), frozen); }),
                       "the frozen parameter 'layers.0.up.weight' and the trained 'layers.0.down.weight'"));
  frozen.parameters[2].trainable = false;  // and its down
  CHECK_NOTHROW(check(fsdp1(frozen, 4), frozen));
}

// Tried with PyTorch 2.15 in all 32 combinations of tied, use_orig_params, param_dtype, reduce_dtype and grad_sync:
// these two raise, whatever reduce_dtype is.
TEST_CASE("rules: without sharding the gradient of a tied weight cannot wait in another dtype") {
  const ModelGraph tied = toy::model({.tied = true}), plain = toy::model();
  const auto said = [](const ModelGraph& model, auto change) {
    ShardingPlan plan = fsdp1(model, 1);
    plan.param_dtype = DType::bf16;
    plan.micro_batches = {2, 2};
    plan.grad_sync = GradSync::last;
    change(plan);
    return testing::refusal([&] { check(plan, model); });
  };
  CHECK(testing::holds(said(tied, [](ShardingPlan&) {}), "grad_sync: PyTorch raises"));
  CHECK(said(plain, [](ShardingPlan&) {}).empty());
  CHECK(said(tied, [](ShardingPlan& p) { p.use_orig_params = false; }).empty());
  CHECK(said(tied, [](ShardingPlan& p) { p.param_dtype = DType::f32; }).empty());
  CHECK(said(tied, [](ShardingPlan& p) { p.grad_sync = GradSync::every; }).empty());
  CHECK(said(tied, [](ShardingPlan& p) { p.micro_batches = {2}; }).empty());
  CHECK(said(tied, [](ShardingPlan& p) { p.mesh = {{"shard", 2}}; }).empty());
}

TEST_CASE("flat layout: aligned to 16 bytes and the ranks, or not at all") {
  // A block's up 10 x 7 = 70 and down 7 x 10 = 70 elements.
  const ModelGraph model = toy::model({.blocks = 1, .width = 7, .hidden = 10});
  ShardingPlan plan = fsdp1(model, 8);
  // fp32: 4 elements are 16 bytes. down begins at 72; 142 elements, padded to 144 for 8 ranks of 18.
  UnitLayout l = unit_layouts(plan, model)[0];
  CHECK(l.params[1].offset == 72);
  CHECK(l.flat_elements == 144);
  CHECK(l.shard_elements == 18);
  CHECK(flat_range(l, l.params[0], 3) == FlatRange{0, 16, 54});  // [54, 72) holds up's last 16
  CHECK(flat_range(l, l.params[1], 3) == FlatRange{});
  CHECK(flat_range(l, l.params[1], 7) == FlatRange{0, 16, 54});  // and two of padding
  CHECK(l.local_elements(3) == 16);
  // bf16: 8 elements. 72 again; the master dtype does not count.
  plan.param_dtype = DType::bf16;
  CHECK(unit_layouts(plan, model)[0].params[1].offset == 72);
  // Without original parameters: 140 elements, ceil(140 / 8) = 18 a rank, the last one holds 14 and an optimizer steps
  // all 18.
  plan.use_orig_params = false;
  l = unit_layouts(plan, model)[0];
  CHECK(l.flat_elements == 140);
  CHECK(l.shard_elements == 18);
  CHECK(flat_range(l, l.params[1], 7) == FlatRange{0, 14, 56});
  CHECK(l.local_elements(7) == 18);
  // Without sharding every rank holds all, padded to the 3 ranks.
  plan = fsdp1(model, 1, 3);
  l = unit_layouts(plan, model)[0];
  CHECK(l.flat_elements == 144);
  CHECK(l.shard_elements == 144);
  CHECK(l.local_elements(0) == 140);
}

TEST_CASE("division before and after: powers of two, replicas count") {
  const ModelGraph model = toy::model({.blocks = 1});
  const auto scale = [&](std::int64_t shard, std::int64_t replicate) {
    return unit_layouts(fsdp1(model, shard, replicate), model)[0].scale;
  };
  CHECK(scale(2, 1).divide_before == 2);
  CHECK(scale(2, 1).divide_after == 1);
  CHECK(scale(6, 1).divide_before == 4);
  CHECK(scale(6, 1).divide_after == 1.5);
  CHECK(scale(4, 2).divide_before == 4);
  CHECK(scale(4, 2).divide_after == 2);
  CHECK(scale(8, 1).reduce_scatter == ReduceOp::sum);
}

TEST_CASE("memory: parameters once, gradients twice while autograd concatenates them") {
  // Blocks of 2 * 60 elements; embedding and head 2 * 66, with 2 zeros after the embedding 134. fp32, two ranks.
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = fsdp1(model, 2);
  const Program program = lower(model, plan, native());
  const Step& step = program.steady_step;
  // Backward of a block: it, the one before it (prefetched) and the root are whole.
  CHECK(most(program, step, BufferKind::unsharded_parameter) == 4 * (134 + 120 + 120));
  // Gradients: at the end of a block's backward its pieces and the flat one, besides the root's head (66 elements) of
  // long ago. The root's own at the end: pieces 132 and the flat 134.
  CHECK(most(program, step, BufferKind::gradient) == 4 * std::max(66 + 120 + 120, 132 + 134));
  // The zeros between the root's parameters, while they are concatenated.
  std::int64_t zeros = 0;
  for (const Operation& op : step.ops)
    if (op.action == Action::scatter_copy_in)
      for (std::int32_t b : step.allocs_of(op))
        zeros += of(program, b).kind == BufferKind::scratch ? of(program, b).bytes : 0;
  CHECK(zeros == 4 * 2);
  // BACKWARD_POST and no prefetch hold one block at a time.
  plan.backward_post = true;
  const Program post = lower(model, plan, native());
  CHECK(most(post, post.steady_step, BufferKind::unsharded_parameter) == 4 * (134 + 120));
  plan.backward_post = false;
  plan.backward_prefetch = 0;
  const Program none = lower(model, plan, native());
  CHECK(most(none, none.steady_step, BufferKind::unsharded_parameter) == 4 * (134 + 120));
  // Forward prefetch delays a unit's flat gradient until the unit before it has computed its own: both units' pieces
  // are there.
  plan.backward_prefetch = 1;
  plan.forward_prefetch = 1;
  const Program ahead = lower(model, plan, native());
  CHECK(most(ahead, ahead.steady_step, BufferKind::gradient) == 4 * (66 + 120 + 120 + 120));
  // The first iteration has no order to go by yet.
  CHECK(most(ahead, ahead.first_step, BufferKind::gradient) == 4 * std::max(66 + 120 + 120, 132 + 134));
}

TEST_CASE("autocast: parameters are gathered, and gradients made, as wide as they are kept") {
  const ModelGraph model = toy::model({.blocks = 2});
  ShardingPlan plan = fsdp1(model, 4);
  plan.param_dtype = plan.reduce_dtype = DType::bf16;
  Implementation casts = native();
  casts.autocast = true;
  const Program narrow = lower(model, plan, native()), wide = lower(model, plan, casts);
  for (const BufferKind kind : {BufferKind::unsharded_parameter, BufferKind::gradient}) {
    CAPTURE(static_cast<int>(kind));
    CHECK(most(wide, wide.steady_step, kind) == 2 * most(narrow, narrow.steady_step, kind));
  }
  CHECK(most(wide, wide.steady_step, BufferKind::sharded_gradient) ==
        most(narrow, narrow.steady_step, BufferKind::sharded_gradient));
  CHECK(wide.layouts[0].gathered_bytes() == 2 * narrow.layouts[0].gathered_bytes());
  CHECK(count(narrow.steady_step, Action::cast_shard) > 0);
  CHECK(count(wide.steady_step, Action::cast_shard) == 0);
  CHECK(find_races(wide).empty());
}

TEST_CASE("blocks that wait for streams are back at the latest where the host has waited for these, or at the end") {
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = fsdp1(model, 2);
  // Without the limiter the host waits for nothing before it reads the loss, and nothing is allocated after that.
  plan.limit_all_gathers = false;
  Program program = lower(model, plan, native());
  const Step& step = program.steady_step;
  std::size_t marked = 0;
  for (const std::int32_t b : step.frees) marked += of(program, b).recorded_streams != 0;
  CHECK(marked > 0);
  std::vector<BlockReturn> returns = latest_returns(step, program);
  CHECK(returns.size() == marked);
  for (const BlockReturn& r : returns) CHECK(r.op == static_cast<std::int32_t>(step.ops.size()));
  // With it, the parameters freed before the event that is waited for are back for the next allocation, and no sooner.
  plan.limit_all_gathers = true;
  program = lower(model, plan, native());
  returns = latest_returns(program.steady_step, program);
  std::size_t early = 0;
  for (const BlockReturn& r : returns) {
    if (r.op == static_cast<std::int32_t>(program.steady_step.ops.size())) continue;
    ++early;
    CHECK(program.steady_step.ops[static_cast<std::size_t>(r.op)].allocs.count > 0);
    const auto freed_by =
        std::find_if(program.steady_step.ops.begin(), program.steady_step.ops.end(), [&](const auto& op) {
          const auto frees = program.steady_step.frees_of(op);
          return std::find(frees.begin(), frees.end(), r.buffer) != frees.end();
        });
    const auto waited = std::find_if(freed_by, program.steady_step.ops.begin() + r.op, [&](const Operation& op) {
      const auto waits = program.steady_step.waits_of(op);
      return op.action == Action::host_wait && !waits.empty() &&
             waits[0] >= freed_by - program.steady_step.ops.begin() - 1;
    });
    CHECK(waited != program.steady_step.ops.begin() + r.op);
  }
  CHECK(early > 0);
  CHECK(early < returns.size());
}

// Three blocks of 2 * 4 * 8 parameters in bf16 over two ranks: a unit's gradient is copied before it is reduced, 128
// bytes for the three blocks each, and the copy goes back when what was issued on its own stream has ended.
TEST_CASE("fsdp1@1.13 copies each gradient before it is reduced, and NCCL's backend marks the copy") {
  const ModelGraph model = toy::model({.blocks = 3, .width = 4, .hidden = 8});
  ShardingPlan plan = fsdp1(model, 2);
  plan.param_dtype = plan.reduce_dtype = DType::bf16;
  plan.use_orig_params = false;
  const Program now = lower(model, plan, native());
  Program then = lower(model, early(plan), native());
  CHECK(count(now.steady_step, Action::cast_gradient) == 0);
  CHECK(most(now, now.steady_step, BufferKind::reduce_input) == 0);
  CHECK(count(then.steady_step, Action::cast_gradient) == plan.units.size());
  int copies = 0;
  for (const Buffer& b : then.buffers) {
    if (b.kind != BufferKind::reduce_input || b.unit > 2) continue;
    ++copies;
    CHECK(b.bytes == 2 * 4 * 8 * 2);
    CHECK(b.pool == Stream::reduce_scatter);
    CHECK(b.recorded_streams == 1U << static_cast<unsigned>(Stream::reduce_scatter));
  }
  CHECK(copies >= 3);
  assign_arena(then);
  CHECK(find_races(then).empty());
  const std::string compiled =
      testing::refusal([&] { return lower(model, plan, find_implementation("torchtitan", true, "")); });
  CAPTURE(compiled);
  CHECK(testing::holds(compiled, "compile: torch.compile came with PyTorch 2.0"));
}

TEST_CASE("blocks that wait for streams have places of their own for as long as they may wait: no race in the arena") {
  const ModelGraph model = toy::model({.blocks = 3});
  for (const bool limits : {true, false}) {
    ShardingPlan plan = fsdp1(model, 2);
    plan.limit_all_gathers = limits;
    Program program = lower(model, plan, native());
    assign_arena(program);
    CHECK(find_races(program).empty());
    const HeldMemory held = replay_latest(program);
    CHECK(program.arena_bytes >= held.peak());
    CHECK(held.peak() > replay_memory(program).peak);
    // Blocks that share bytes as if frees took effect at once are a race.
    Program hasty = program;
    for (Buffer& b : hasty.buffers) b.recorded_streams = 0;
    assign_arena(hasty);
    for (std::size_t b = 0; b < hasty.buffers.size(); ++b)
      hasty.buffers[b].recorded_streams = program.buffers[b].recorded_streams;
    CHECK_FALSE(find_races(hasty).empty());
  }
}

TEST_CASE("the rate limiter: one event per all-gather, queued from step to step") {
  const ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan = fsdp1(model, 2);
  // Frees of a step: 3 blocks in forward, 3 and the root in backward. In a steady step as many events are taken.
  const Program limited = lower(model, plan, native());
  CHECK(count(limited.steady_step, Action::host_wait) == 7);
  CHECK(count(limited.first_step, Action::host_wait) == 3);  // so 4 are left for the next step
  std::size_t of_before = 0;
  for (const Operation& op : limited.steady_step.ops) {
    if (op.action != Action::host_wait) continue;
    REQUIRE(op.waits.count == 1);
    const std::int32_t w = limited.steady_step.waits_of(op)[0];
    const std::int32_t event = w >= 0 ? w : -1 - w;
    of_before += w < 0;
    CHECK(limited.steady_step.ops[static_cast<std::size_t>(event)].stream == Stream::compute);
  }
  CHECK(of_before == 4);
  plan.limit_all_gathers = false;
  CHECK(count(lower(model, plan, native()).steady_step, Action::host_wait) == 0);
  // Nothing is freed without sharding, nor in forward by SHARD_GRAD_OP.
  CHECK(count(lower(model, fsdp1(model, 1, 2), native()).steady_step, Action::host_wait) == 0);
  // The root alone frees once a step: the event that is waited for is two steps old, which a Step cannot name.
  plan = fsdp1(model, 2);
  plan.units.erase(plan.units.begin(), plan.units.end() - 1);
  const Program alone = lower(model, plan, native());
  REQUIRE(count(alone.steady_step, Action::host_wait) == 1);
  for (const Operation& op : alone.steady_step.ops)
    if (op.action == Action::host_wait) CHECK(op.waits.count == 0);
}

TEST_CASE(
    "properties on generated plans: counts, race-free, closed memory, every gathered parameter freed, shards make the "
    "whole") {
  constexpr unsigned seed = 20261121;
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 300; ++trial) {
    CAPTURE(trial);
    const ModelGraph model = toy::model({.blocks = 1 + pick(5),
                                         .vocab = 5 + pick(9),
                                         .width = 3 + pick(9),
                                         .hidden = 4 + pick(9),
                                         .tied = pick(2) == 0});
    const ShardingPlan plan = testing::any_flat_plan(model, random);
    const Implementation& impl = pick(2) ? native() : find_implementation("torchtitan", false, "test");
    const Program program = lower(model, plan, impl, pick(static_cast<int>(plan.ranks())));
    CHECK(memory_lower_bound(model, plan, impl).count() <= replay_memory(program).peak);
    const auto races = find_races(program);
    if (!races.empty())
      FAIL("race: " << races[0].rule << " step " << races[0].step << " ops " << races[0].earlier << " "
                    << races[0].later << " buffer " << races[0].buffer);

    const Step& step = program.steady_step;
    std::set<std::int32_t> gathered;
    std::map<std::int32_t, std::size_t> gathers, reductions;
    for (const Operation& op : step.ops) {
      if (op.action == Action::all_gather) ++gathers[op.unit];
      if (op.action == (plan.shard() > 1 ? Action::reduce_scatter : Action::all_reduce)) ++reductions[op.unit];
      for (std::int32_t b : step.allocs_of(op))
        if (of(program, b).kind == BufferKind::unsharded_parameter) gathered.insert(b);
      for (std::int32_t b : step.frees_of(op)) gathered.erase(b);
    }
    CHECK(gathered.empty());
    // A micro-batch gathers a unit in forward, and again in backward if it was freed after it, and once more to run it
    // again where its checkpoint is reentrant; without reduction SHARD_GRAD_OP keeps it.
    const std::size_t micro = plan.micro_batches.size(), syncs = plan.grad_sync == GradSync::every ? micro : 1;
    for (std::size_t u = 0; u < plan.units.size(); ++u) {
      CAPTURE(u);
      const UnitLayout& l = program.layouts[u];
      if (l.params.empty()) continue;
      const bool full = plan.units[u].reshard_after_forward != Reshard::no;
      const bool around = plan.reentrant && plan.units[u].modules == plan.checkpointed;
      const std::size_t forward = full ? micro : syncs, backward = full && !l.root ? (around ? 2 : 1) * micro : 0;
      CHECK(gathers[static_cast<std::int32_t>(u)] == (plan.shard() > 1 ? forward + backward : 0));
      CHECK(reductions[static_cast<std::int32_t>(u)] == syncs);
      std::int64_t before = 0;
      for (const ShardedParam& p : l.params) {
        CHECK(p.offset >= before);
        CHECK(p.offset - before < 16);
        if (plan.use_orig_params) CHECK(p.offset * size_of(plan.param_dtype) % 16 == 0);
        before = p.offset + p.numel();
        std::int64_t next = 0;  // ranks' ranges of a parameter join without gap
        for (std::int64_t r = 0; r < l.shards; ++r) {
          const FlatRange range = flat_range(l, p, r);
          if (range.elements == 0) continue;
          CHECK(range.offset_in_param == next);
          CHECK(r * l.shard_elements + range.offset_in_shard == p.offset + next);
          next += range.elements;
        }
        CHECK(next == p.numel());
      }
      CHECK(l.flat_elements - before < plan.ranks());
      CHECK(l.shard_elements * l.shards - l.flat_elements < l.shards);
    }
  }
}
