// What training loops do beside calling the model (LoopPlan), as PyTorch's tests of fully_shard do it by hand, run.
// tests/PARITY.md says which test case stands for which of its tests.
#include "tests/support/mlp_model.h"
#include "tests/support/parity_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph blocks(int n = 3) {
  return mlp({.blocks = std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(n), {6, 9, 6}), .vocab = 11});
}

ShardingPlan double_plan(const ModelGraph& model, const PlanWords& words) { return make_plan(model, in_double(words)); }

// Embedding, each block, the output layer and an empty root.
ShardingPlan with_head(const ModelGraph& model, const PlanWords& words, int blocks = 3) {
  ShardingPlan plan = double_plan(model, words);
  plan.units = {{{"embed"}}};
  for (int i = 0; i < blocks; ++i) plan.units.push_back({{"layers." + std::to_string(i)}});
  plan.units.push_back({{"head"}});
  plan.units.push_back({{""}});
  for (Unit& u : plan.units) u.reshard_after_forward = words.reshard;
  return plan;
}

int gathers_of(const ModelGraph& model, const ShardingPlan& plan, const std::string& unit) {
  const Program program = lower(model, plan, native_implementation());
  return static_cast<int>(
      std::count_if(program.steady_step.ops.begin(), program.steady_step.ops.end(), [&](const Operation& op) {
        return op.action == Action::all_gather && plan.units[static_cast<std::size_t>(op.unit)].modules.front() == unit;
      }));
}

}  // namespace

TEST_CASE("test_train_parity_multi_group_unshard_async_op: gathers with a handle are copied in on the compute stream") {
  const ModelGraph model = blocks();
  for (const Reshard reshard : {Reshard::automatic, Reshard::yes, Reshard::no, Reshard{2}})
    for (const int prefetch : {0, 2}) {
      ShardingPlan plan = double_plan(model, {.shard = 4, .reshard = reshard, .forward_prefetch = prefetch});
      const RunResult plain = check_parity(model, plan);
      plan.loop.unshard_async = true;
      CHECK(equal_bits(check_parity(model, plan), plain));
      const Program program = lower(model, plan, native_implementation());
      for (const Operation& op : program.steady_step.ops)
        if (op.action == Action::gather_copy_in) CHECK(op.stream == Stream::compute);
    }
}

TEST_CASE("inputs of recomputed blocks in host memory: the same bits as on the device") {
  const ModelGraph model = small_llama({.layers = 3});
  ShardingPlan plan = double_plan(
      model, {.shard = 2, .checkpointing = "full", .reshard = Reshard::yes, .micro_batches = {2, 1}, .clip_norm = 0.5});
  const RunResult plain = check_parity(model, plan);
  plan.offload_activations = {plan.checkpointed[0], plan.checkpointed[2]};
  const RunResult offloaded = check_parity(model, plan);
  CHECK(equal_bits(offloaded, plain));
  for (const RankMeasurement& rank : offloaded.measurement.ranks) {
    CHECK(executed(rank, Action::offload_activation) == 4);
    CHECK(executed(rank, Action::fetch_activation) == 4);
  }
}

TEST_CASE("test_unshard_async: units that are gathered by hand before each forward are gathered once, and first") {
  const ModelGraph model = blocks();
  ShardingPlan plan = double_plan(model, {.shard = 3, .reshard = Reshard::yes, .micro_batches = {1, 1}});
  const RunResult plain = check_parity(model, plan);
  plan.loop.unshard = {"layers.2", "layers.0"};
  const RunResult by_hand = check_parity(model, plan);
  CHECK(equal_bits(by_hand, plain));
  const auto first = std::find_if(by_hand.measurement.ranks[0].order.begin(), by_hand.measurement.ranks[0].order.end(),
                                  [](const OrderedOperation& o) { return o.action == Action::all_gather; });
  CHECK(first->object.find("layers.2") != std::string::npos);
  for (const RankMeasurement& rank : by_hand.measurement.ranks)
    CHECK(executed(rank, Action::all_gather) == executed(plain.measurement.ranks[0], Action::all_gather));
}

TEST_CASE("test_manual_reshard_with_reshard_after_forward_false: what is resharded by hand is gathered for backward") {
  const ModelGraph model = blocks();
  ShardingPlan plan = double_plan(model, {.shard = 2, .reshard = Reshard::no});
  const RunResult plain = check_parity(model, plan);
  plan.loop.reshard = {"layers.0", "layers.1", "layers.2"};
  const RunResult by_hand = check_parity(model, plan);
  CHECK(equal_bits(by_hand, plain));
  CHECK(executed(plain.measurement.ranks[0], Action::all_gather) == 4);
  CHECK(executed(by_hand.measurement.ranks[0], Action::all_gather) == 4 + 3);
  CHECK(executed(by_hand.measurement.ranks[0], Action::reduce_scatter) == 4);
}

TEST_CASE("test_1f1b_microbatching: backwards that end without waiting, with and without gathers by hand") {
  const ModelGraph model = blocks();
  const PlanWords words{.shard = 2, .reshard = Reshard::no, .micro_batches = {1, 1, 1}, .grad_sync = GradSync::last};
  ShardingPlan plan = double_plan(model, words);
  for (Unit& u : plan.units) u.reshard_after_backward = false;
  const RunResult plain = check_parity(model, plan);
  plan.loop.last_backward = true;
  CHECK(equal_bits(check_parity(model, plan), plain));
  plan.loop.unshard = {"layers.0", "layers.1", "layers.2", ""};
  const RunResult by_hand = check_parity(model, plan);
  CHECK(equal_bits(by_hand, plain));
  CHECK(executed(by_hand.measurement.ranks[0], Action::all_gather) == 4);
  CHECK(executed(by_hand.measurement.ranks[0], Action::reduce_scatter) == 4);
}

TEST_CASE(
    "set_is_last_backward: reductions of every micro-batch overlap with the next, by reshard mode and over replicas") {
  const ModelGraph model = blocks();
  for (const Reshard reshard : {Reshard::automatic, Reshard::yes, Reshard{2}})
    for (const std::int64_t replicate : {1, 2}) {
      if (reshard.ranks > 1 && replicate > 1) continue;
      ShardingPlan plan = with_head(
          model, {.shard = 4 / replicate, .replicate = replicate, .reshard = reshard, .micro_batches = {1, 1, 1}});
      const RunResult plain = check_parity(model, plan);
      plan.loop.last_backward = true;
      CHECK(equal_bits(check_parity(model, plan), plain));
    }
}

TEST_CASE("test_double_partial_forward_then_backward: two and three forwards before one backward of their sum") {
  const ModelGraph model = blocks();
  for (const Reshard reshard : {Reshard::automatic, Reshard::yes, Reshard::no, Reshard{2}}) {
    ShardingPlan plan = double_plan(model, {.shard = 4, .reshard = reshard, .micro_batches = {1, 1}});
    plan.loop.forwards = 2;
    const RunResult two = check_parity(model, plan);
    CHECK(executed(two.measurement.ranks[0], Action::reduce_scatter) == 4);  // AccumulateGrad runs once for both
  }
  ShardingPlan plan = double_plan(model, {.shard = 2, .replicate = 2, .micro_batches = {1, 1, 1, 1}});
  plan.loop.forwards = 2;
  check_parity(model, plan);
  plan.micro_batches = {1, 2, 1};
  plan.loop.forwards = 3;
  plan.grad_sync = GradSync::last;
  check_parity(model, plan);
}

TEST_CASE("test_double_forward_with_nested_fsdp_and_checkpoint: two forwards, units inside recomputed blocks") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  ShardingPlan plan = double_plan(model, {.shard = 2, .reshard = Reshard::yes, .micro_batches = {1, 1}});
  plan.units.clear();
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i);
    plan.units.push_back({{layer + ".mlp"}});
    plan.units.push_back({{layer}});
  }
  plan.units.push_back({{""}});
  plan.checkpointed = checkpointed_modules(model, "full", "test");
  plan.loop.forwards = 2;
  check_parity(model, plan);
}

TEST_CASE(
    "a loss in parts with their output layer: one that reshards is gathered twice per part, else once or once in all") {
  const ModelGraph model = blocks();
  const int parts = 7;
  ShardingPlan plan = with_head(model, {.shard = 2, .reshard = Reshard::yes});
  const RunResult whole = check_parity(model, plan);
  plan.loss_chunks = parts;
  plan.loop.chunk_head = true;
  const RunResult resharded = check_parity(model, plan);
  CHECK(gathers_of(model, plan, "head") == 2 * parts);
  plan.units[4].reshard_after_forward = Reshard::no;
  const RunResult kept = check_parity(model, plan);
  CHECK(gathers_of(model, plan, "head") == parts);
  plan.units[4].reshard_after_backward = false;
  const RunResult once = check_parity(model, plan);
  CHECK(gathers_of(model, plan, "head") == 1);
  CHECK(equal_bits(kept, resharded));
  CHECK(equal_bits(once, resharded));
  // Each part's gradients are reduced, but where they wait for the last.
  CHECK(executed(once.measurement.ranks[0], Action::reduce_scatter) == 4 + parts);
  plan.units[4].grad_sync = GradSync::last;
  CHECK(executed(check_parity(model, plan).measurement.ranks[0], Action::reduce_scatter) == 4 + 1);
  CHECK(executed(whole.measurement.ranks[0], Action::reduce_scatter) == 4 + 1);
}

TEST_CASE(
    "a loss in parts with their output layer: accumulation, replicas, recomputation, backwards that do not wait") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  for (const bool last_backward : {false, true})
    for (const std::int64_t replicate : {1, 2}) {
      ShardingPlan plan = double_plan(
          model, {.shard = 2, .replicate = replicate, .reshard = Reshard::yes, .micro_batches = {2, 1}, .seq_len = 8});
      plan.units.insert(plan.units.begin() + 2, Unit{{"lm_head"}, Reshard::yes});
      plan.loss_chunks = 4;
      plan.loop.chunk_head = true;
      plan.loop.last_backward = last_backward;
      const RunResult first = check_parity(model, plan);
      plan.checkpointed = checkpointed_modules(model, "full", "test");
      CHECK(equal_bits(check_parity(model, plan), first));
    }
}

TEST_CASE(
    "test_partial_group_forward_then_standalone, _grad_accum_chunked, _reshard_toggle: an output layer in a unit with "
    "the "
    "norm before it") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  ShardingPlan plan =
      double_plan(model, {.shard = 2, .reshard = Reshard::yes, .micro_batches = {1, 1, 1}, .seq_len = 8});
  plan.units.insert(plan.units.begin() + 2, Unit{{"model.norm", "lm_head"}, Reshard::yes});
  plan.grad_sync = GradSync::last;
  plan.loss_chunks = 4;
  plan.loop.chunk_head = plan.loop.last_backward = true;
  const RunResult resharded = check_parity(model, plan);
  // Its own forward, each part and its own backward; and once more at the end of the step, since the first unit of a
  // micro-batch prefetches the last unit of the one before.
  CHECK(gathers_of(model, plan, "model.norm") == 3 * (2 + 4) + 1);
  plan.units[2].reshard_after_forward = Reshard::no;
  CHECK(equal_bits(check_parity(model, plan), resharded));
  plan.units[2].reshard_after_backward = false;
  CHECK(equal_bits(check_parity(model, plan), resharded));
  CHECK(gathers_of(model, plan, "model.norm") == 1 + 1);
  plan.loop.reshard = {"model.norm"};  // behind the parts, before the backward of the rest
  CHECK(equal_bits(check_parity(model, plan), resharded));
  CHECK(gathers_of(model, plan, "model.norm") == 1 + 3 + 1);
}

TEST_CASE("test_unshard_no_param_group: gathering a unit without parameters by hand does nothing") {
  const ModelGraph model = blocks();
  ShardingPlan plan = with_head(model, {.shard = 2, .reshard = Reshard::yes});
  const RunResult plain = check_parity(model, plan);
  plan.loop.unshard = {""};
  CHECK(equal_bits(check_parity(model, plan), plain));
  const Program by_hand = lower(model, plan, native_implementation());
  plan.loop = {};
  CHECK(by_hand.steady_step == lower(model, plan, native_implementation()).steady_step);
}

TEST_CASE("test_post_optim_event: gathers of a step wait for the optimizer, and not for what follows it") {
  const ModelGraph model = blocks();
  for (const Reshard reshard : {Reshard::automatic, Reshard::yes}) {
    ShardingPlan plan = double_plan(model, {.shard = 2, .reshard = reshard, .micro_batches = {1, 1}});
    const RunResult plain = check_parity(model, plan);
    plan.loop.post_optim_event = true;
    CHECK(equal_bits(check_parity(model, plan), plain));
    const Program program = lower(model, plan, native_implementation());
    const Step& step = program.steady_step;
    const auto first = std::find_if(step.ops.begin(), step.ops.end(),
                                    [](const Operation& op) { return op.action == Action::gather_copy_in; });
    REQUIRE(step.waits_of(*first).size() == 1);
    const std::int32_t wait = step.waits_of(*first)[0];
    REQUIRE(wait < 0);
    CHECK(step.ops[static_cast<std::size_t>(-1 - wait)].action == Action::optimizer);
    CHECK(std::none_of(step.ops.begin() - wait, step.ops.end(),
                       [](const Operation& op) { return op.action == Action::optimizer; }));
  }
}

TEST_CASE(
    "a loss that the model computes: the root ends behind it, and the numbers are those of one computed outside") {
  const ModelGraph model = blocks();
  for (const Dialect dialect : {Dialect::fsdp2, Dialect::fsdp1, Dialect::ddp})
    for (const Reshard reshard : {Reshard::automatic, Reshard::yes, Reshard::no}) {
      const bool ddp = dialect == Dialect::ddp;
      if (ddp && reshard != Reshard::automatic) continue;
      ShardingPlan plan = double_plan(model, {.shard = ddp ? 1 : 4,
                                              .replicate = ddp ? 4 : 1,
                                              .reshard = reshard,
                                              .micro_batches = {1, 1},
                                              .dialect = dialect});
      const RunResult outside = check_parity(model, plan);
      plan.loop.loss_in_model = true;
      CHECK(equal_bits(check_parity(model, plan), outside));
      // The last block is gathered for its backward before the loss has been differentiated.
      const Program program = lower(model, plan, native_implementation());
      const std::vector<Operation>& ops = program.steady_step.ops;
      const auto is_loss = [&](const Operation& op) {
        return op.action == Action::backward && op.graph_op + 1 == static_cast<std::int32_t>(model.ops.size());
      };
      const auto loss = std::find_if(ops.begin(), ops.end(), is_loss);
      REQUIRE(loss != ops.end());
      const auto forward = std::find_if(std::make_reverse_iterator(loss), ops.rend(),
                                        [](const Operation& op) { return op.action == Action::forward; });
      const auto gathers = std::count_if(std::make_reverse_iterator(loss), forward,
                                         [](const Operation& op) { return op.action == Action::all_gather; });
      const bool root = dialect == Dialect::fsdp2 && reshard == Reshard::yes;  // is gathered again
      CHECK(gathers == (ddp || reshard == Reshard::no ? 0 : root ? 2 : 1));
    }
}
