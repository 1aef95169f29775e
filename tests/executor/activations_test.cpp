// Inputs of recomputed blocks that wait in host memory: PyTorch's offload_wrapper around checkpoint_wrapper, which is
// torch.autograd.graph.save_on_cpu around what the checkpoint saves. Memory by closed forms; what GPUs measured of it
// is in rows 3010, 3016 and 3017 of tests/accuracy/published_runs_2.csv.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "planner/wrap.h"
#include "simulator/engine/memory.h"
#include "simulator/engine/race.h"
#include "simulator/predict.h"
#include "tests/support/predict_support.h"
#include "tests/support/refusal.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr std::int64_t kLayers = 6, kSequences = 2, kTokens = 8;

struct Case {
  ModelGraph model = small_llama({.layers = kLayers});
  ShardingPlan plan = make_plan(model, {.shard = 2,
                                        .checkpointing = "full",
                                        .reshard = Reshard::yes,
                                        .micro_batches = {kSequences},
                                        .seq_len = kTokens});
  Implementation stack = find_implementation("torchtitan", false, "test");
};

std::int64_t input_of_block(const Case& c) { return input_bytes(c.plan, c.model, c.plan.checkpointed[0]); }

std::vector<std::size_t> places(const Step& step, Action action) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < step.ops.size(); ++i)
    if (step.ops[i].action == action) found.push_back(i);
  return found;
}

// Activations on the device while op `at` runs.
std::int64_t alive(const Program& program, std::size_t at) {
  const Step& step = program.steady_step;
  std::int64_t bytes = 0;
  const auto count = [&](std::int32_t b, int sign) {
    const Buffer& buffer = program.buffers[static_cast<std::size_t>(b)];
    if (buffer.kind == BufferKind::activation && !buffer.host) bytes += sign * buffer.bytes;
  };
  for (std::size_t i = 0; i <= at; ++i) {
    for (const std::int32_t b : step.allocs_of(step.ops[i])) count(b, 1);
    if (i < at)
      for (const std::int32_t b : step.frees_of(step.ops[i])) count(b, -1);
  }
  return bytes;
}

}  // namespace

TEST_CASE("each block's input goes to host memory before the block runs, and comes back before it runs again") {
  Case c;
  SUBCASE("fsdp2") {}
  SUBCASE("fsdp1") { c.plan.dialect = Dialect::fsdp1; }
  // Sequences x tokens x hidden, in bf16.
  c.plan.param_dtype = DType::bf16;
  std::int64_t hidden = 0;
  for (const Op& op : c.model.ops)
    if (op.kind == OpKind::embedding) hidden = op.shape.width;
  CHECK(input_of_block(c) == kSequences * kTokens * hidden * 2);
  c.plan.offload_activations = c.plan.checkpointed;
  check(c.plan, c.model);
  const Program program = lower(c.model, c.plan, c.stack);
  CHECK(find_races(program).empty());
  const Step& step = program.steady_step;
  const auto out = places(step, Action::offload_activation), in = places(step, Action::fetch_activation);
  REQUIRE(out.size() == kLayers);
  REQUIRE(in.size() == kLayers);
  for (std::size_t k = 0; k < out.size(); ++k) {
    const Operation &copy = step.ops[out[k]], &back = step.ops[in[kLayers - 1 - k]];
    CHECK(copy.graph_op == back.graph_op);
    CHECK(copy.stream == Stream::compute);
    CHECK(step.ops[out[k] + 1].graph_op == copy.graph_op);  // its block, for which the host does not wait
    const auto host = static_cast<std::size_t>(step.args_of(copy)[1].buffer);
    CHECK(program.buffers[host].host);
    CHECK(program.buffers[host].bytes == input_of_block(c));
    CHECK(step.args_of(back)[0].buffer == static_cast<std::int32_t>(host));
    CHECK_FALSE(program.buffers[static_cast<std::size_t>(step.args_of(back)[1].buffer)].host);
    // The block's first op reads what was there before; its recomputation what has come back.
    const auto first = std::find_if(step.ops.begin() + static_cast<std::ptrdiff_t>(in[k]), step.ops.end(),
                                    [](const Operation& o) { return o.action == Action::recompute; });
    REQUIRE(first != step.ops.end());
    CHECK(step.args_of(*first)[0].buffer == step.args_of(step.ops[in[k]])[1].buffer);
  }
}

TEST_CASE("memory: inputs are off the device until their block runs again, and together in host memory") {
  Case c;
  const Program before = lower(c.model, c.plan, c.stack);
  CHECK(replay_memory(before).host_peak == 0);
  const std::int64_t input = input_of_block(c);
  for (const std::int64_t count : {std::int64_t{1}, kLayers / 2, kLayers}) {
    CAPTURE(count);
    c.plan.offload_activations.clear();
    offload_activations(c.plan, c.model, Bytes(count * input + input - 1));
    REQUIRE(static_cast<std::int64_t>(c.plan.offload_activations.size()) == std::min(count, kLayers));
    check(c.plan, c.model);
    const Program after = lower(c.model, c.plan, c.stack);
    CHECK(replay_memory(after).host_peak == count * input);
    CHECK(replay_memory(after).peak < replay_memory(before).peak);
    // While the loss runs backward all of them are away; while block k does, those of the blocks before it that are
    // sent away at all.
    const auto backward = places(before.steady_step, Action::backward),
               backward_after = places(after.steady_step, Action::backward);
    REQUIRE(backward.size() == backward_after.size());
    CHECK(alive(after, backward_after[0]) == alive(before, backward[0]) - count * input);
    std::int64_t block = kLayers;
    for (std::size_t k = 0; k < backward.size(); ++k) {
      const auto op = static_cast<std::size_t>(before.steady_step.ops[backward[k]].graph_op);
      if (c.model.ops[op].module < 0) continue;
      const std::string& module = c.model.modules[static_cast<std::size_t>(c.model.ops[op].module)].name;
      for (std::int64_t l = 0; l < block; ++l)
        if (module.starts_with("model.layers." + std::to_string(l) + ".")) block = l;
      if (block == kLayers || module.find("mlp.down_proj") == std::string::npos) continue;
      CHECK(alive(after, backward_after[k]) == alive(before, backward[k]) - std::min(block, count) * input);
    }
    CHECK(block == 0);
  }
}

TEST_CASE("copies take the time of the host's link, both ways, on the stream that computes") {
  Case c;
  const ClusterSpec cluster = load_cluster("dgx-h100", 2);
  const Costs costs = default_costs(cluster);
  c.plan.offload_activations = c.plan.checkpointed;
  const Prediction p = predict({c.model, c.plan, c.stack, cluster, costs});
  c.plan.offload_activations.clear();
  const Prediction without = predict({c.model, c.plan, c.stack, cluster, costs});
  CHECK(p.step_time > without.step_time);
  REQUIRE(p.host.has_value());
  const auto pinned = static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(input_of_block(c))));
  CHECK(p.host->needed_bytes == 2.0 * kLayers * pinned);
  CHECK_FALSE(without.host.has_value());
}

TEST_CASE("plans that cannot have activations in host memory") {
  const Case c;
  const auto refused = [&](auto&& change) {
    ShardingPlan plan = c.plan;
    plan.offload_activations = {plan.checkpointed[1]};
    change(plan);
    return refusal([&] { check(plan, c.model); });
  };
  CHECK(refused([](ShardingPlan&) {}).empty());
  CHECK(holds(refused([](ShardingPlan& p) {
                p.dialect = Dialect::ddp, p.mesh = {{"replicate", 2}, {"shard", 1}};
                for (Unit& u : p.units) u.reshard_after_forward = {};
              }),
              "under ddp"));
  CHECK(holds(refused([](ShardingPlan& p) { p.checkpoint_policy = CheckpointPolicy::selective_op; }), "selective"));
  CHECK(holds(refused([](ShardingPlan& p) { p.offload_activations.push_back(p.offload_activations[0]); }), "twice"));
  CHECK(holds(refused([](ShardingPlan& p) { p.checkpointed.erase(p.checkpointed.begin() + 1); }), "is not recomputed"));
  CHECK(holds(refused([](ShardingPlan& p) { p.checkpointed = p.offload_activations = {"model.embed_tokens"}; }),
              "reads the batch"));
  CHECK(parse_plan(to_json_text(c.plan), "p") == c.plan);
  ShardingPlan plan = c.plan;
  plan.offload_activations = {plan.checkpointed[1]};
  CHECK(parse_plan(to_json_text(plan), "p") == plan);
}
