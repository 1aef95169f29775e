// Plans of the dialect fsdp1 on several ranks, as PyTorch's FullyShardedDataParallel carries them out: equal to one
// rank, in the order that was predicted, with memory between the predicted bounds.
#include "executor/data/synthetic.h"
#include "models/index.h"
#include "planner/layout/flat.h"
#include "planner/program/stream_frees.h"
#include "tests/support/any_plan.h"
#include "tests/support/delaying_backend.h"
#include "tests/support/parity_support.h"
#include "tests/support/toy_model.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

PlanWords flat(PlanWords w) {
  w.dialect = Dialect::fsdp1;
  return in_double(std::move(w));
}

// Sizes that neither the ranks nor 16 bytes divide, so that shards cut through parameters and there are gaps.
ModelGraph odd_model(bool tied = false) {
  return toy::model({.blocks = 3, .vocab = 11, .width = 5, .hidden = 7, .tied = tied});
}

struct Strategy {
  const char* name;
  std::int64_t shard, replicate;
  Reshard reshard;
};
constexpr Strategy kStrategies[] = {{"FULL_SHARD", 3, 1, Reshard::yes},
                                    {"SHARD_GRAD_OP", 3, 1, Reshard::no},
                                    {"HYBRID_SHARD", 2, 2, Reshard::yes},
                                    {"_HYBRID_SHARD_ZERO2", 2, 2, Reshard::no},
                                    {"NO_SHARD", 1, 3, Reshard::yes}};

// Of any small widths, most of which the ranks do not divide.
ModelGraph any_odd_model(std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  return toy::model(
      {.blocks = 1 + pick(3), .vocab = 5 + pick(9), .width = 3 + pick(9), .hidden = 4 + pick(9), .tied = pick(3) == 0});
}

}  // namespace

TEST_CASE("FULL_SHARD with BACKWARD_PRE on two ranks learns what one rank learns") {
  const ModelGraph model = odd_model();
  const RunResult r = check_parity(model, make_plan(model, flat({.shard = 2, .micro_batches = {2}})));
  // Three blocks and the root, each gathered for forward; for backward the blocks again.
  CHECK(executed(r.measurement.ranks[0], Action::all_gather) == 7);
  CHECK(executed(r.measurement.ranks[0], Action::reduce_scatter) == 4);
}

TEST_CASE("every sharding strategy, with and without original parameters, at each place of the backward prefetch") {
  for (const Strategy& s : kStrategies)
    for (const bool original : {true, false})
      for (const int prefetch : {0, 1, 2}) {  // none, BACKWARD_PRE, BACKWARD_POST
        if (prefetch != 1 && original == (prefetch == 0)) continue;
        CAPTURE(s.name);
        CAPTURE(original);
        CAPTURE(prefetch);
        const ModelGraph model = odd_model(prefetch == 2);
        ShardingPlan plan = make_plan(
            model, flat({.shard = s.shard, .replicate = s.replicate, .reshard = s.reshard, .micro_batches = {1}}));
        plan.use_orig_params = original;
        plan.backward_prefetch = prefetch > 0 ? 1 : 0;
        plan.backward_post = prefetch == 2;
        plan.clip_norm = prefetch == 1 ? std::optional(0.5) : std::nullopt;
        check_parity(model, plan);
      }
}

TEST_CASE("no_sync: gradients of micro-batches that wait stay unsharded and are reduced once") {
  for (const Strategy& s : kStrategies)
    for (const bool original : {true, false})
      for (const GradSync sync : {GradSync::every, GradSync::last}) {
        if (s.shard == 3 && original != (sync == GradSync::last)) continue;
        CAPTURE(s.name);
        CAPTURE(original);
        const ModelGraph model = odd_model();
        ShardingPlan plan = make_plan(model, flat({.shard = s.shard,
                                                   .replicate = s.replicate,
                                                   .reshard = s.reshard,
                                                   .micro_batches = {1, 2, 1},
                                                   .grad_sync = sync}));
        plan.use_orig_params = original;
        const RunResult r = check_parity(model, plan);
        const int micro = sync == GradSync::every ? 3 : 1;
        const Action reduction = s.shard > 1 ? Action::reduce_scatter : Action::all_reduce;
        CHECK(executed(r.measurement.ranks[0], reduction) == 4 * micro);
      }
}

TEST_CASE("forward prefetch, the rate limiter and units inside of units change when, not what") {
  for (const bool limits : {true, false})
    for (const int forward : {0, 1}) {
      CAPTURE(limits);
      CAPTURE(forward);
      const ModelGraph model = odd_model();
      ShardingPlan plan = make_plan(model, flat({.shard = 2, .forward_prefetch = forward}));
      plan.units.insert(plan.units.begin(), Unit{{"layers.1.down"}});
      plan.limit_all_gathers = limits;
      check_parity(model, plan);
      plan.checkpointed = {"layers.0", "layers.2"};
      check_parity(model, plan);
    }
}

// docs/fsdp-order.md A2.15.
TEST_CASE("reentrant checkpoints gather a unit once more, and learn the same") {
  const ModelGraph model = odd_model();
  for (const Strategy& s : kStrategies)
    for (const int forward : {0, 1}) {
      CAPTURE(s.name);
      CAPTURE(forward);
      ShardingPlan plan = make_plan(model, flat({.shard = s.shard,
                                                 .replicate = s.replicate,
                                                 .reshard = s.reshard,
                                                 .micro_batches = {1, 2},
                                                 .forward_prefetch = forward}));
      plan.checkpointed = {"layers.0", "layers.1", "layers.2"};
      const RunResult within = check_parity(model, plan);
      plan.reentrant = true;
      const RunResult around = check_parity(model, plan);
      const auto gathers = [](const RunResult& r) { return executed(r.measurement.ranks[0], Action::all_gather); };
      const bool freed = s.shard > 1 && s.reshard == Reshard::yes;
      CHECK(gathers(around) - gathers(within) == (freed ? 2 * 3 : 0));  // each block, in each micro-batch
      plan.units.insert(plan.units.begin(), Unit{{"layers.1.down"}, s.reshard});
      check_parity(model, plan);
    }
}

TEST_CASE("CPU offload: shards, their gradients and the optimizer live in host memory") {
  for (const bool original : {true, false})
    for (const std::int64_t replicate : {1, 2}) {
      CAPTURE(original);
      const ModelGraph model = odd_model();
      ShardingPlan plan = make_plan(
          model, flat({.shard = 2, .replicate = replicate, .micro_batches = {1, 1}, .grad_sync = GradSync::last}));
      plan.offload = true;
      plan.use_orig_params = original;
      check_parity(model, plan);
      plan.clip_norm = 0.05;
      check_parity(model, plan);
    }
}

TEST_CASE("ignored parameters are whole on every rank and learn from that rank's tokens alone") {
  const ModelGraph model = odd_model();
  ShardingPlan plan = make_plan(model, flat({.shard = 1, .replicate = 1}));
  for (const std::int64_t shard : {1, 3}) {
    plan.mesh = {{"replicate", 1}, {"shard", shard}};
    plan.ignored = {"head"};
    RunOptions o = five_steps();  // every rank sees the same sequences
    o.training.tokens = [vocab = model.vocab, per_rank = plan.sequences_per_rank(), ranks = plan.ranks()](
                            std::int64_t sequence, std::int64_t length, std::int64_t* ids, std::int64_t* targets) {
      const std::int64_t mine = sequence % per_rank + sequence / (per_rank * ranks) * per_rank;
      for (std::int64_t p = 0; p < length; ++p) {
        ids[p] = synthetic_token(7, mine, p, vocab);
        targets[p] = synthetic_token(7, mine, p + 1, vocab);
      }
    };
    const RunResult many = execute(model, plan, o);
    ShardingPlan one = unsharded(model, plan);
    one.micro_batches = {plan.sequences_per_rank()};
    RunOptions alone = o;
    alone.training.tokens = [vocab = model.vocab](std::int64_t sequence, std::int64_t length, std::int64_t* ids,
                                                  std::int64_t* targets) {
      for (std::int64_t p = 0; p < length; ++p) {
        ids[p] = synthetic_token(7, sequence, p, vocab);
        targets[p] = synthetic_token(7, sequence, p + 1, vocab);
      }
    };
    check_equal(many, execute(model, one, alone), 1e-10);
    check_as_predicted(model, plan, many.measurement);
  }
}

TEST_CASE("frozen units are gathered and freed, and have neither gradients nor optimizer states") {
  const std::vector<std::vector<std::string>> choices = {{"layers.1"}, {"layers.0", "layers.2"}, {"embed", "head"}};
  for (const Strategy& s : kStrategies)
    for (const auto& frozen : choices) {
      CAPTURE(s.name);
      CAPTURE(frozen.front());
      const ModelGraph model = freeze(odd_model(), frozen, "test");
      ShardingPlan plan = make_plan(model, flat({.shard = s.shard, .replicate = s.replicate, .reshard = s.reshard}));
      const RunResult r = check_parity(model, plan);
      for (std::size_t p = 0; p < model.parameters.size(); ++p) {
        const RunResult& one = reference(model, plan);
        if (!model.parameters[p].trainable) CHECK(r.parameters[p].values == one.parameters[p].values);
      }
    }
}

TEST_CASE("units that run more than once in a forward are gathered for each, and reduced once") {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 0}, {0, 1, 0, 2, 1}, {0, 1, 0, 2, 0}})
    for (const Strategy& s : kStrategies) {
      if (s.shard == 1) continue;  // refused
      CAPTURE(s.name);
      const GradSync sync = order.size() == 4 ? GradSync::last : GradSync::every;
      const ModelGraph model = toy::model({.blocks = 3, .vocab = 11, .width = 5, .hidden = 7, .order = order});
      ShardingPlan plan = make_plan(model, flat({.shard = s.shard,
                                                 .replicate = s.replicate,
                                                 .reshard = s.reshard,
                                                 .micro_batches = {1, 1},
                                                 .grad_sync = sync}));
      const RunResult r = check_parity(model, plan);
      CHECK(executed(r.measurement.ranks[0], Action::reduce_scatter) == 4 * (sync == GradSync::every ? 2 : 1));
    }
}

TEST_CASE("summon_full_params: a run hands out whole parameters and gradients, whatever the flat shards cut through") {
  const ModelGraph model = odd_model();
  for (const bool original : {true, false}) {
    ShardingPlan plan = make_plan(model, flat({.shard = 4, .micro_batches = {1}}));
    plan.use_orig_params = original;
    const RunResult r = check_parity(model, plan);
    std::int64_t cut = 0;  // shards that begin within a row
    const Program program = lower(model, plan, native_implementation());
    for (const UnitLayout& layout : program.layouts)
      for (const ShardedParam& p : layout.params)
        for (std::int64_t s = 0; s < plan.shard(); ++s) {
          const FlatRange range = flat_range(layout, p, s);
          cut += range.elements > 0 && range.offset_in_param % model.parameters[at(p.param)].shape[1] != 0;
        }
    CHECK(cut > 0);
    for (std::size_t i = 0; i < model.parameters.size(); ++i) {
      CHECK(r.parameters[i].name == model.parameters[i].name);
      CHECK(static_cast<std::int64_t>(r.parameters[i].values.size()) == model.parameters[i].numel());
    }
  }
}

TEST_CASE("random plans of fsdp1 in fp64: five steps equal those of one rank; order, bounds and bytes as predicted") {
  const unsigned seed = 20261124;
  std::mt19937 random(seed);
  for (int trial = 0; trial < 40; ++trial) {
    CAPTURE(trial);
    const ModelGraph model = any_odd_model(random);
    ShardingPlan plan = any_flat_plan(model, random);
    plan.param_dtype = plan.reduce_dtype = plan.master_dtype = DType::f64;
    plan.optimizer.lr = 3e-3;
    check_parity(model, plan);
  }
}

TEST_CASE("random plans of fsdp1 in mixed precision: near one rank in fp32; order, bounds and bytes as predicted") {
  const unsigned seed = 20261125;
  std::mt19937 random(seed);
  for (int trial = 0; trial < 40; ++trial) {
    CAPTURE(trial);
    const ModelGraph model = any_odd_model(random);
    ShardingPlan plan = any_flat_plan(model, random);
    plan.optimizer.lr = 3e-3;
    check_parity(model, plan, five_steps(), 0.1);
  }
}

TEST_CASE("a rank whose streams stand still holds more than one whose do not, and no more than was predicted") {
  const ModelGraph model = odd_model();
  ShardingPlan plan = make_plan(model, flat({.shard = 2, .micro_batches = {2}}));
  for (const bool limits : {true, false}) {
    CAPTURE(limits);
    plan.limit_all_gathers = limits;
    DelayingBackend backend(make_host_backend({1, 2}, {30}),
                            {.before_all_gather = 2, .before_reduce_scatter = 6, .after_reduce_scatter = 6});
    const RunResult r = run(model, plan, load_cluster("host", 2), backend, five_steps());
    check_equal(r, reference(model, plan), 1e-10);
    check_as_predicted(model, plan, r.measurement);
    const Program program = lower(model, plan, native_implementation());
    CHECK(frees_at_stream_time(program));
    bool more = false;
    const MemoryTimeline least = replay_memory(program).steady_step, &held = r.measurement.ranks[0].steady_step;
    for (std::size_t i = 0; i < held.points.size(); ++i) more = more || held.points[i].at > least.points[i].at;
    CHECK(more);
  }
}
