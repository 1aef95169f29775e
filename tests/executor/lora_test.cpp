// Models with adapters, trained by the executor, against transformers and peft trained by PyTorch from the same weights
// on the same tokens: tests/golden/lora_training.json, recorded by tests/torch/record_lora.py.
#include "models/graph/lora.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/run_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

const nlohmann::json& golden() {
  static const nlohmann::json document =
      nlohmann::json::parse(std::ifstream(FSDP_TESTS_DIR "/golden/lora_training.json"));
  return document;
}

// The sequences of a step are divided over the ranks, and on each into micro-batches.
ShardingPlan plan_of(const ModelGraph& model, std::int64_t ranks, std::int64_t replicate, std::int64_t micro_batches) {
  const auto& g = golden();
  const std::int64_t each = g["sequences"].get<std::int64_t>() / ranks / micro_batches;
  PlanWords words{.shard = ranks / replicate,
                  .replicate = replicate,
                  .micro_batches = std::vector<std::int64_t>(static_cast<std::size_t>(micro_batches), each),
                  .seq_len = g["seq_len"]};
  words.seed = g["seed"];
  words.compute = words.reduce = words.master = DType::f64;
  ShardingPlan plan = make_plan(model, words);
  const auto& a = g["adamw"];
  plan.optimizer = {OptimizerKind::adamw, a["lr"], a["beta1"], a["beta2"], a["eps"], a["weight_decay"]};
  return plan;
}

void check_equals(const nlohmann::json& recorded, const ModelGraph& model, const RunResult& result) {
  const auto losses = recorded["losses"].get<std::vector<double>>();
  REQUIRE(result.measurement.losses.size() == losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i)
    CHECK(std::abs(result.measurement.losses[i] - losses[i]) <= 1e-10 * losses[i]);
  std::size_t trained = 0;
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const std::string& name = model.parameters[i].name;
    CAPTURE(name);
    const double final_norm = recorded["final_norms"][name];
    CHECK(std::abs(norm(result.parameters[i].values) - final_norm) <= 1e-9 * final_norm);
    CHECK(recorded["first_gradient_norms"].contains(name) == model.parameters[i].trainable);
    if (!model.parameters[i].trainable) continue;
    ++trained;
    const double gradient = recorded["first_gradient_norms"][name];
    CHECK(std::abs(norm(result.first_gradients[i].values) - gradient) <= 1e-9 * gradient);
  }
  CHECK(trained == recorded["first_gradient_norms"].size());
}

}  // namespace

TEST_CASE("five steps of adapters equal PyTorch's with peft, however they are divided and recomputed") {
  REQUIRE(golden()["runs"].size() == 2);
  for (const auto& recorded : golden()["runs"]) {
    const std::string lora = recorded["lora"];
    CAPTURE(lora);
    const ModelGraph model = add_lora(model_from_config(golden()["config"].get<std::string>(), "config.json"),
                                      parse_lora(lora, "lora"), "lora");
    RunOptions options;
    options.warmup_steps = 1;
    options.steps = 4;
    options.keep_parameters = true;
    for (const auto& [ranks, replicate, micro_batches] :
         {std::tuple{1, 1, 1}, std::tuple{2, 1, 3}, std::tuple{4, 2, 1}, std::tuple{3, 1, 2}}) {
      CAPTURE(ranks);
      ShardingPlan plan = plan_of(model, ranks, replicate, micro_batches);
      check_equals(recorded, model, execute(model, plan, options));
      for (const Module& m : model.modules)
        if (m.block) plan.checkpointed.push_back(m.name);
      check_equals(recorded, model, execute(model, plan, options));
      ShardingPlan around = plan;
      around.dialect = Dialect::fsdp1;
      set_units(around, wrap(model, kTrainedOutermostUnits, "test"));
      if (ranks > replicate) check_equals(recorded, model, execute(model, around, options));
      set_units(around, wrap(model, "block|adapters", "test"));
      around.reentrant = true;
      check_equals(recorded, model, execute(model, around, options));
      plan.dialect = Dialect::ddp, plan.mesh = {{"replicate", ranks}};
      check_equals(recorded, model, execute(model, plan, options));
    }
  }
}
