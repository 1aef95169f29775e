// Replayed memory of lowered fsdp1 programs against what PyTorch's FullyShardedDataParallel has allocated
// (tests/torch/golden/fsdp1_memory.json, recorded by tests/torch/record_fsdp1_memory.py): bytes after every all-gather,
// free and reduction of every unit, after forward, backward and the optimizer, and the peak of a steady step.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/lower.h"
#include "tests/planner/torch/recorded_llama.h"

using namespace fsdp;
using Json = nlohmann::json;

namespace {

struct Moment {
  std::string name;
  std::int32_t unit = -1;
  std::int64_t bytes = 0;
};

// Walks a step in host order. What PyTorch holds and a Program does not is added: the training loop keeps ids and
// targets to the end of a micro-batch. Scalars are left out on both sides: losses, and the counters of AdamW.
class Replay {
 public:
  Replay(const Program& program, const ModelGraph& model, const ShardingPlan& plan)
      : p_(program), model_(model), plan_(plan) {
    run(program.init);
    run(program.first_step);
  }

  std::vector<Moment> run(const Step& step) {
    moments_.clear();
    peak_ = 0;
    batch_ = 0;
    for (std::size_t i = 0; i < step.ops.size(); ++i) {
      const Operation& op = step.ops[i];
      const auto next_is = [&](Action a) { return i + 1 < step.ops.size() && step.ops[i + 1].action == a; };
      if (op.action == Action::load_batch) batch_ = 2 * 8 * plan_.micro_batches[0] * plan_.seq_len;
      for (std::int32_t b : step.allocs_of(op)) change(b, +1);
      peak_ = std::max(peak_, now());
      if (op.action == Action::all_gather) note("gather", op.unit);
      // The last flat gradient that a reduction frees is autograd's, which lets go of it after the hook.
      std::int32_t held = -1;
      for (std::int32_t b : step.frees_of(op)) {
        const Buffer& buffer = p_.buffers[static_cast<std::size_t>(b)];
        if (buffer.kind == BufferKind::gradient && buffer.param < 0 && op.stream != Stream::compute &&
            plan_.shard() > 1)
          held = b;
      }
      for (std::int32_t b : step.frees_of(op)) {
        const Buffer& buffer = p_.buffers[static_cast<std::size_t>(b)];
        if (b == held) note("reduce", op.unit);
        change(b, -1);
        if (buffer.kind == BufferKind::unsharded_parameter) note("free", buffer.unit);
      }
      if (op.action == Action::zero_gradients) note("zero", -1);
      if (op.action == Action::forward && op.graph_op + 1 == static_cast<std::int32_t>(model_.ops.size()))
        note("forward", -1);
      const bool in_backward =
          op.action != Action::zero_gradients && op.action != Action::optimizer && op.action != Action::init_optimizer;
      if (in_backward &&
          (next_is(Action::load_batch) || next_is(Action::optimizer) || next_is(Action::init_optimizer))) {
        batch_ = 0;
        note("backward", -1);
      }
      if (op.action == Action::optimizer && !next_is(Action::optimizer)) note("step", -1);
    }
    return moments_;
  }

  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  [[nodiscard]] std::int64_t now() const { return now_ + batch_; }
  void note(const char* name, std::int32_t unit) { moments_.push_back({name, unit, now()}); }
  void change(std::int32_t id, int sign) {
    const Buffer& b = p_.buffers[static_cast<std::size_t>(id)];
    if (b.kind != BufferKind::scalar && b.kind != BufferKind::batch) now_ += sign * b.bytes;
  }

  const Program& p_;
  const ModelGraph& model_;
  const ShardingPlan& plan_;
  std::int64_t now_ = 0, batch_ = 0, peak_ = 0;
  std::vector<Moment> moments_;
};

ShardingPlan plan_of(const Json& c, const ModelGraph& model) {
  ShardingPlan plan;
  plan.dialect = Dialect::fsdp1;
  plan.model_name = model.name;
  plan.model_digest = model.digest();
  plan.mesh = {{"replicate", c["replicate"]}, {"shard", c["shard"]}};
  for (const Json& u : c["units"])
    plan.units.push_back({u.get<std::vector<std::string>>(), parse_reshard(c["reshard"].get<std::string>(), "golden")});
  plan.micro_batches.assign(c["micro_batches"].get<std::size_t>(), c["sequences"]);
  plan.seq_len = c["seq_len"];
  plan.param_dtype = parse_dtype(c["param_dtype"].get<std::string>(), "golden");
  plan.reduce_dtype = parse_dtype(c["reduce_dtype"].get<std::string>(), "golden");
  plan.grad_sync = parse_grad_sync(c["grad_sync"].get<std::string>(), "golden");
  plan.forward_prefetch = c["forward_prefetch"].get<bool>() ? 1 : 0;
  plan.backward_prefetch = c["backward_prefetch"] == "none" ? 0 : 1;
  plan.backward_post = c["backward_prefetch"] == "post";
  plan.use_orig_params = c["use_orig_params"];
  plan.trained_outermost = c.value("trained_outermost", false);
  plan.reentrant = c.value("reentrant", false);
  if (c["checkpoint"].get<bool>())
    for (int b = 0; b < c["layers"].get<int>(); ++b) plan.checkpointed.push_back("model.layers." + std::to_string(b));
  check(plan, model, "golden");
  return plan;
}

}  // namespace

TEST_CASE("memory of fsdp1 is what PyTorch's FullyShardedDataParallel has allocated") {
  std::ifstream file(std::string(FSDP_TESTS_DIR) + "/torch/golden/fsdp1_memory.json");
  REQUIRE(file);
  const Json golden = Json::parse(file);
  REQUIRE(golden["cases"].size() >= 20);
  for (const Json& g : golden["cases"]) {
    const Json& config = g["config"];
    const std::string name = config["name"];
    CAPTURE(name);
    ModelGraph model = freeze(recorded_llama(config), config.value("frozen", std::vector<std::string>{}), "golden");
    if (config.value("input_gradients", false)) model = require_input_gradients(std::move(model));
    const ShardingPlan plan = plan_of(config, model);
    const Program program = lower(model, plan, find_implementation("torch-cpu", false, "test"));
    Replay replay(program, model, plan);
    const std::vector<Moment> ours = replay.run(program.steady_step);
    const Json& theirs = g["steady"]["moments"];
    std::string order, their_order;
    for (const Moment& m : ours) order += fmt::format("{} {}, ", m.name, m.unit);
    for (const Json& m : theirs) their_order += fmt::format("{} {}, ", m[0].get<std::string>(), m[1].get<int>());
    REQUIRE(order == their_order);
    // Inside of a block that runs again around a frozen unit, autograd has one gradient less at three moments before
    // the unit's hook has copied it: the most that is there at once says what counts of these.
    const bool copied = plan.reentrant && config.value("input_gradients", false);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (copied && ours[i].name != "forward" && ours[i].name != "backward" && ours[i].name != "gather") continue;
      CAPTURE(i);
      CAPTURE(ours[i].name);
      CAPTURE(ours[i].unit);
      CHECK(ours[i].bytes == theirs[i][2].get<std::int64_t>());
    }
    const std::int64_t peak = g["steady"]["peak"];
    CHECK_MESSAGE(replay.peak() == peak, fmt::format("{:30} our peak {:12}, PyTorch's {:12}, difference {:+}", name,
                                                     replay.peak(), peak, replay.peak() - peak));
  }
}
