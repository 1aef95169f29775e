// Optimizer states that wait in host memory from step to step: where they are, what that takes and saves, and that
// training is the same to the last bit, across checkpoints, too.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/costs/rates.h"
#include "planner/layout/optimizer_state.h"
#include "planner/lower.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "simulator/predict.h"
#include "tests/support/checkpoint_support.h"
#include "tests/support/parity_support.h"
#include "tests/support/predict_support.h"
#include "tests/support/refusal.h"
#include "tests/support/relative.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

PlanWords words(Dialect dialect, OptimizerKind optimizer = OptimizerKind::adamw, double momentum = 0) {
  PlanWords w;
  w.dialect = dialect;
  if (dialect == Dialect::ddp) w.replicate = 2;
  else w.shard = 2;
  w.micro_batches = {2, 1};
  w.clip_norm = 0.5;
  w.optimizer = optimizer;
  w.momentum = momentum;
  return w;
}

// Bytes of optimizer states that are alive before each operation of a step, on the device or in host memory.
std::vector<std::int64_t> states_alive(const Program& program, bool host) {
  const Step& step = program.steady_step;
  std::vector<std::int64_t> before;
  std::int64_t bytes = 0;
  const auto count = [&](std::int32_t b, int sign) {
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
    if (buffer.kind == BufferKind::optimizer_state && buffer.host == host) bytes += sign * buffer.bytes;
  };
  for (const Step* s : {&program.init, &program.first_step, &step})
    for (const Operation& op : s->ops) {
      if (s == &step) before.push_back(bytes);
      memory_events(
          *s, op, [&](std::int32_t b) { count(b, 1); }, [&](std::int32_t b) { count(b, -1); });
    }
  return before;
}

std::int64_t states_of(const Program& program) {
  std::int64_t bytes = 0;
  for (const Operation& op : program.first_step.ops)
    for (const Arg& a : program.first_step.args_of(op))
      if (op.action == Action::init_optimizer && a.buffer >= 0)
        bytes += program.buffers[static_cast<std::size_t>(a.buffer)].bytes;
  return bytes;
}

}  // namespace

TEST_CASE("states are on the device from their optimizer's fetch to the copy back, and in host memory all the time") {
  const ModelGraph model = small_llama({.layers = 3});
  for (const Dialect dialect : {Dialect::fsdp2, Dialect::fsdp1, Dialect::ddp})
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd}) {
      CAPTURE(name(dialect));
      ShardingPlan plan = make_plan(model, words(dialect, kind, kind == OptimizerKind::sgd ? 0.9 : 0));
      plan.offload_optimizer = true;
      check(plan, model);
      const Program program = lower(model, plan, find_implementation("torchtitan", false, "test"));
      CHECK(find_races(program).empty());
      const std::int64_t all = states_of(program);
      REQUIRE(all > 0);
      const std::vector<std::int64_t> device = states_alive(program, false), host = states_alive(program, true);
      bool back = false;
      for (std::size_t i = 0; i < device.size(); ++i) {
        const Action action = program.steady_step.ops[i].action;
        CHECK(host[i] == all);
        if (action == Action::forward || action == Action::backward || action == Action::clip_scale)
          CHECK(device[i] == 0);
        if (action == Action::optimizer) CHECK(device[i] == all);  // all have come before the first steps
        back = back || action == Action::offload_state;
        if (action == Action::fetch_state) CHECK_FALSE(back);
      }
      CHECK(device.back() == 0);
      const Operation& last = *std::find_if(program.steady_step.ops.rbegin(), program.steady_step.ops.rend(),
                                            [](const Operation& o) { return o.action == Action::host_wait; });
      const std::int32_t waited = program.steady_step.waits_of(last)[0];
      CHECK(program.steady_step.ops[static_cast<std::size_t>(waited)].action == Action::offload_state);
    }
}

TEST_CASE("peaks of forward and backward lack the states, and the copies take the host's link twice") {
  const ModelGraph model = load_model("llama3-8b");
  const ClusterSpec cluster = load_cluster("dgx-h100", 8);
  const Costs costs = default_costs(cluster);
  PlanWords w = words(Dialect::fsdp2);
  w.shard = 8;
  w.compute = DType::bf16;
  w.seq_len = 4096;
  w.clip_norm = std::nullopt;
  ShardingPlan plan = make_plan(model, w);
  const Implementation& stack = find_implementation("torchtitan", false, "test");
  const Prediction with = fsdp::testing::predict({model, plan, stack, cluster, costs});
  plan.offload_optimizer = true;
  const Prediction without = fsdp::testing::predict({model, plan, stack, cluster, costs});
  const double states = 2.0 * 4 * static_cast<double>(model.parameter_count()) / 8;
  CHECK(static_cast<double>((with.peak_allocated - without.peak_allocated).count()) == relative(states).epsilon(0.01));
  REQUIRE(without.host.has_value());
  double pinned = 0;  // two states of every parameter, each a power of two
  for (const Parameter& p : model.parameters)
    pinned += 2.0 * static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(p.numel() / 8 * 4)));
  CHECK(pinned > 1.05 * states);
  CHECK(without.host->needed_bytes == relative(8 * pinned));
  const double copied = 2 * states / host_copy_rate(cluster.gpu);
  CHECK((without.step_time - with.step_time).count() == relative(copied).epsilon(0.05));
}

TEST_CASE("training is the same to the last bit, and goes on from a checkpoint") {
  const ModelGraph model = small_llama({.layers = 2});
  for (const Dialect dialect : {Dialect::fsdp2, Dialect::fsdp1, Dialect::ddp}) {
    CAPTURE(name(dialect));
    const ShardingPlan kept = make_plan(model, words(dialect));
    ShardingPlan plan = kept;
    plan.offload_optimizer = true;
    const Folder folder;
    const auto saved_after = [&](const ShardingPlan& p, const char* to, RunOptions from = {}) {
      RunOptions options = saving(model, p, folder / to);
      options.training = from.training;
      options.warmup_steps = options.steps = 1;  // two steps in all
      return execute(model, p, options);
    };
    saved_after(kept, "kept");
    const RunResult first = saved_after(plan, "away");
    CHECK(state_in(Checkpoint(folder / "away")) == state_in(Checkpoint(folder / "kept")));
    const RunResult kept_on = saved_after(kept, "kept on", resuming(model, kept, folder / "kept"));
    const RunResult gone_on = saved_after(plan, "gone on", resuming(model, plan, folder / "away"));
    CHECK(state_in(Checkpoint(folder / "gone on")) == state_in(Checkpoint(folder / "kept on")));
    CHECK(gone_on.measurement.losses == kept_on.measurement.losses);
    for (const RankMeasurement& rank : first.measurement.ranks) {
      CHECK(executed(rank, Action::offload_state) == 2 * executed(rank, Action::optimizer));
      CHECK(executed(rank, Action::fetch_state) == 2 * executed(rank, Action::optimizer));
    }
  }
}

TEST_CASE("plans whose states cannot wait in host memory; the file says it") {
  const ModelGraph model = small_llama({.layers = 2});
  const auto refused = [&](auto&& change) {
    ShardingPlan plan = make_plan(model, words(Dialect::fsdp2));
    plan.offload_optimizer = true;
    change(plan);
    return refusal([&] { check(plan, model); });
  };
  CHECK(refused([](ShardingPlan&) {}).empty());
  CHECK(holds(refused([](ShardingPlan& p) { p.offload = true; }), "keeps the optimizer's states in host memory"));
  CHECK(holds(refused([](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::sgd; }), "sgd keeps no states"));
  CHECK(holds(refused([](ShardingPlan& p) { p.optimizer.kind = OptimizerKind::adamw_8bit; }), "is not known"));
  ShardingPlan plan = make_plan(model, words(Dialect::fsdp2));
  CHECK(to_json_text(plan).find("offload_optimizer") == std::string::npos);
  plan.offload_optimizer = true;
  CHECK(parse_plan(to_json_text(plan), "p") == plan);
}
