// Checkpoints of plans with tensor ranks: what was trained is what is saved, and any mesh goes on from it. Cases named
// test_* stand for PyTorch's tests of that name (tests/PARITY.md).
#include "tests/support/checkpoint_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph llama() {
  return small_llama({.layers = 2, .vocab = 48, .hidden = 32, .inner = 40, .heads = 8, .kv_heads = 4});
}

struct Mesh {
  std::int64_t replicate = 1, shard = 1, tensor = 1;
};

// 8 sequences in a step, however many ranks.
ShardingPlan plan_of(const ModelGraph& model, const Mesh& m) {
  return make_plan(model, {.shard = m.shard,
                           .replicate = m.replicate,
                           .micro_batches = {8 / (m.shard * m.replicate)},
                           .seq_len = 8,
                           .compute = DType::f64,
                           .reduce = DType::f64,
                           .master = DType::f64,
                           .tensor = m.tensor});
}

RunOptions three_steps(RunOptions options) {
  options.warmup_steps = 1;
  options.steps = 2;
  options.keep_parameters = true;
  return options;
}

// Three steps on one mesh, and three more on another, are six on one rank.
void check_goes_on(const ModelGraph& model, const Mesh& from, const Mesh& to, const RunResult& straight) {
  CAPTURE(from.replicate);
  CAPTURE(from.shard);
  CAPTURE(from.tensor);
  CAPTURE(to.replicate);
  CAPTURE(to.shard);
  CAPTURE(to.tensor);
  const Folder folder;
  const ShardingPlan first = plan_of(model, from), second = plan_of(model, to);
  const RunResult before = execute(model, first, three_steps(saving(model, first, folder / "ckpt")));
  const RunResult after = execute(model, second, three_steps(resuming(model, second, folder / "ckpt")));
  for (std::size_t i = 0; i < straight.parameters.size(); ++i) {
    CAPTURE(straight.parameters[i].name);
    CHECK(distance(after.parameters[i].values, straight.parameters[i].values) <= 1e-10);
  }
  std::vector<double> losses = before.measurement.losses;
  losses.insert(losses.end(), after.measurement.losses.begin(), after.measurement.losses.end());
  CHECK(distance(losses, straight.measurement.losses) <= 1e-10);
}

RunResult six_steps(const ModelGraph& model) {
  RunOptions options = three_steps({});
  options.steps = 5;
  return execute(model, plan_of(model, {}), options);
}

}  // namespace

TEST_CASE("test_2d_state_dict_correctness: what is saved over shard x tensor is what was trained, whole, to the bit") {
  const ModelGraph model = llama();
  for (const Mesh& mesh : {Mesh{1, 2, 2}, {1, 3, 2}, {2, 2, 2}, {1, 2, 4}}) {
    const Folder folder;
    ShardingPlan plan = plan_of(model, mesh);
    plan.micro_batches = {1};
    const RunResult result = execute(model, plan, three_steps(saving(model, plan, folder / "ckpt")));
    const State state = state_in(Checkpoint(folder / "ckpt"));
    CHECK(state.size() == 3 * model.parameters.size());
    for (const NamedTensor& t : result.parameters) {
      CAPTURE(t.name);
      CHECK(as_doubles(state.at(t.name), DType::f64) == t.values);
    }
  }
}

TEST_CASE("test_dp_tp_state_dict_save_load: from shard x tensor to other sizes of both, and to none") {
  const ModelGraph model = llama();
  const RunResult straight = six_steps(model);
  for (const Mesh& to : {Mesh{1, 2, 2}, {1, 1, 4}, {1, 4, 1}, {1, 1, 1}}) check_goes_on(model, {1, 2, 2}, to, straight);
  check_goes_on(model, {1, 4, 1}, {1, 2, 4}, straight);
}

TEST_CASE("test_hsdp_tp_state_dict_save_load: from replicate x shard x tensor to others, and back") {
  const ModelGraph model = llama();
  const RunResult straight = six_steps(model);
  check_goes_on(model, {2, 2, 2}, {1, 2, 2}, straight);
  check_goes_on(model, {1, 2, 4}, {2, 2, 2}, straight);
}
