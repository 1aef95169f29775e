// Tensor parallelism beside FSDP2, run: five steps equal those of one rank (fp64, 1e-10), in the predicted order,
// memory and bytes of every rank. tests/PARITY.md says which test case stands for which of PyTorch's tests.
#include <random>

#include "models/input/error.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/parity_support.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph llama() {
  return small_llama({.layers = 2, .vocab = 48, .hidden = 32, .inner = 40, .heads = 8, .kv_heads = 4});
}

// With norms of heads, whose weights are summed over the ranks' heads.
ModelGraph qwen3() {
  return model_from_config(
      R"({"model_type": "qwen3", "vocab_size": 44, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false})",
      "small_qwen3");
}

ShardingPlan double_plan(const ModelGraph& model, PlanWords words) {
  words.seq_len = 8;
  return make_plan(model, in_double(words));
}

// Runs the plan with every rank's program changed by `change`, which returns whether an operation was to be changed.
template <class Change>
bool fails(const ModelGraph& model, const ShardingPlan& plan, const Change& change) {
  bool changed = false;
  RunOptions options = five_steps();
  options.mutate = [&](Program& program, std::int64_t) {
    for (Step* step : {&program.first_step, &program.steady_step})
      for (Operation& op : step->ops)
        if (change(op)) {
          changed = true;
          break;
        }
  };
  RunResult result;
  try {
    result = execute(model, plan, options);
  } catch (const MachineError&) {
    return changed;
  } catch (const InternalError&) {  // it has a race
    return changed;
  }
  const RunResult& one = reference(model, plan);
  bool equal = distance(result.measurement.losses, one.measurement.losses) <= 1e-10;
  for (std::size_t i = 0; i < one.parameters.size(); ++i)
    equal = equal && distance(result.parameters[i].values, one.parameters[i].values) <= 1e-10;
  return changed && !equal;
}

bool over_tensor(const Operation& op, Action action) { return op.comm == Communicator::tensor && op.action == action; }

}  // namespace

TEST_CASE("test_2d_mlp_with_nd_mesh: shard x tensor of 2 x 2 and 2 x 4, with and without a loss in parts") {
  const ModelGraph model = llama();
  for (const std::int64_t tensor : {2, 4})
    for (const bool loss_parallel : {true, false}) {
      ShardingPlan plan = double_plan(model, {.shard = 2, .micro_batches = {2, 1}, .tensor = tensor});
      plan.tensor_plan.loss_parallel = loss_parallel;
      check_parity(model, plan);
    }
  check_parity(model, double_plan(model, {.shard = 2, .checkpointing = "full", .micro_batches = {2}, .tensor = 2}));
  check_parity(model, double_plan(model, {.shard = 4, .wrap = "root", .reshard = Reshard::no, .tensor = 2}));
  check_parity(model, double_plan(model, {.shard = 1, .tensor = 4}));
  check_parity(qwen3(), double_plan(qwen3(), {.shard = 2, .micro_batches = {1, 2}, .tensor = 2}));
}

TEST_CASE("test_3d_mlp_with_nd_mesh: replicate x shard x tensor of 2 x 2 x 2") {
  const ModelGraph model = llama();
  for (const GradSync sync : {GradSync::every, GradSync::last, GradSync::reduce_scatter_only})
    check_parity(
        model,
        double_plan(
            model,
            {.shard = 2, .replicate = 2, .micro_batches = {1, 2}, .clip_norm = 0.05, .grad_sync = sync, .tensor = 2}));
}

TEST_CASE("test_clip_grad_norm_2d over shard x tensor: norms 1, 2, 3 and inf count what ranks share once") {
  const ModelGraph model = llama();
  for (const double p : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    ShardingPlan plan = double_plan(model, {.shard = 2, .clip_norm = 0.02, .tensor = 2});
    plan.clip_norm_type = p;
    check_parity(model, plan);
  }
}

TEST_CASE("mixed precision with tensor ranks: as predicted, and near one rank's training in fp32") {
  const ModelGraph model = llama();
  for (const GradSync sync : {GradSync::every, GradSync::last})
    for (const auto& [compute, reduce, tolerance] : {std::tuple{DType::bf16, DType::f32, 0.03},
                                                     {DType::bf16, DType::bf16, 0.03},
                                                     {DType::f32, DType::f32, 1e-4}}) {
      const ShardingPlan plan = make_plan(model, {.shard = 2,
                                                  .micro_batches = {2, 1},
                                                  .seq_len = 8,
                                                  .compute = compute,
                                                  .reduce = reduce,
                                                  .clip_norm = 0.05,
                                                  .grad_sync = sync,
                                                  .tensor = 2});
      CAPTURE(name(compute));
      CAPTURE(name(reduce));
      const RunResult result = execute(model, plan, five_steps());
      check_as_predicted(model, plan, result.measurement);
      CHECK(distance(result.measurement.losses, reference(model, plan).measurement.losses) <= tolerance);
      for (std::size_t i = 0; i < result.parameters.size(); ++i)
        CHECK(distance(result.first_gradients[i].values, reference(model, plan).first_gradients[i].values) <=
              tolerance);
    }
}

TEST_CASE("random plans with tensor ranks equal one rank's training and their prediction") {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto pick = [&](auto... of) {
      const std::common_type_t<decltype(of)...> all[] = {of...};
      return all[random() % sizeof...(of)];
    };
    const ModelGraph model = pick(0, 1) == 0 ? llama() : qwen3();
    PlanWords words{.checkpointing = pick("none", "full", "every-2"), .micro_batches = {1}};
    words.tensor = 2, words.shard = pick(1, 2, 3, 4), words.replicate = words.shard <= 2 ? pick(1, 2) : 1;
    words.wrap = pick("block", "block:2", "root", "titan");
    words.reshard = pick(Reshard::automatic, Reshard::yes, Reshard::no);
    words.grad_sync = words.replicate > 1 ? pick(GradSync::every, GradSync::last, GradSync::reduce_scatter_only)
                                          : pick(GradSync::every, GradSync::last);
    for (int more = pick(0, 1, 2); more > 0; --more) words.micro_batches.push_back(pick(1, 2));
    if (pick(0, 1) == 1) words.clip_norm = 0.05;
    words.forward_prefetch = pick(0, 1), words.backward_prefetch = pick(0, 1, 2);
    ShardingPlan plan = double_plan(model, words);
    plan.tensor_plan.loss_parallel = pick(0, 1, 2) > 0;
    plan.seq_len = pick(6, 8);
    check_parity(model, plan);
  }
}

TEST_CASE("mutants fail: a collective dropped, a wrong communicator, a norm's gradient not summed") {
  const ModelGraph model = llama();
  const ShardingPlan plan = double_plan(model, {.shard = 2, .micro_batches = {2}, .clip_norm = 0.05, .tensor = 2});
  CHECK_FALSE(fails(model, plan, [](const Operation& op) { return over_tensor(op, Action::all_reduce); }));
  // Dropped, one of each kind.
  for (const Action action :
       {Action::all_gather, Action::reduce_scatter, Action::all_reduce, Action::clip_reduce, Action::slice_gradient}) {
    CAPTURE(name(action));
    CHECK(fails(model, plan, [&](Operation& op) {
      if (!over_tensor(op, action) && (action != Action::slice_gradient || op.action != action)) return false;
      op.action = Action::zero_gradients;  // which does nothing
      return true;
    }));
    if (action == Action::slice_gradient) continue;
    CHECK(fails(model, plan, [&](Operation& op) {
      if (!over_tensor(op, action)) return false;
      op.comm = Communicator::shard;
      return true;
    }));
  }
  CHECK(fails(model, plan, [](Operation& op) {
    if (!over_tensor(op, Action::all_reduce) || op.graph_op >= 0) return false;
    op.action = Action::slice_gradient, op.comm = Communicator::none;  // a copy, instead of a sum
    return true;
  }));
  CHECK(fails(model, plan, [](Operation& op) {
    if (op.action != Action::reduce_scatter || op.comm != Communicator::shard) return false;
    op.comm = Communicator::tensor;
    return true;
  }));
}

TEST_CASE("mutant fails: shards in the plain order of the ranks, not part by part") {
  class PlainOrder : public ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    void launch_kernel(std::int32_t op, Stream s, std::span<const std::int32_t> waits, KernelCall call) override {
      if (call.op.action == Action::init_parameters && (call.rank == 1 || call.rank == 2)) call.rank = 3 - call.rank;
      d_.launch_kernel(op, s, waits, std::move(call));
    }
  };
  const ModelGraph model = llama();
  const ShardingPlan plan = double_plan(model, {.shard = 2, .tensor = 2});
  ForwardingBackend backend(make_host_backend({1, 2, 2}, {30}),
                            [](Device& device, const ForwardingBackend::Body& body) {
                              PlainOrder plain(device);
                              body(plain);
                            });
  const RunResult result = run(model, plan, load_cluster("host", 4), backend, five_steps());
  CHECK(distance(result.measurement.losses, reference(model, plan).measurement.losses) > 1e-6);
}
