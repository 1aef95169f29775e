// Exported models against the program's own models of the same families: two ways to the same numbers. The exporter
// sees PyTorch run transformers' classes; importers and implementations were written beside recordings of single
// operators.
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/implementation.h"
#include "planner/costs.h"
#include "planner/job.h"
#include "planner/module_costs.h"
#include "planner/plan.h"
#include "planner/plan/naive_plan.h"
#include "simulator/predict.h"

using namespace fsdp;
using nlohmann::json;

namespace {

constexpr std::int64_t kTokens = 512, kSequences = 16;

struct Pair {
  ModelGraph exported, own;
};

Pair models_of(const std::string& family) {
  std::ifstream in(FSDP_TESTS_DIR "/golden/exported/family_" + family + ".json");
  REQUIRE(in);
  const json golden = json::parse(in);
  return {model_from_config(golden["model"].dump(), "model.json"),
          model_from_config(golden["config"].dump(), "config.json")};
}

ShardingPlan plan_of(const ModelGraph& model, const std::string& checkpointing) {
  PlanOptions options;
  options.ranks = 8;
  options.seq_len = kTokens;
  options.micro_batches = {kSequences};
  ShardingPlan plan = naive_plan(model, options);
  for (const Module& m : model.modules)
    if (m.block && checkpointing != "none") plan.checkpointed.push_back(m.name);
  if (checkpointing == "selective-op") plan.checkpoint_policy = CheckpointPolicy::selective_op;
  return plan;
}

const Implementation& implementation_of(const ModelGraph& model) {
  return find_implementation(model.trace.empty() ? "hf" : "traced", false, "");
}

Prediction predicted(const ModelGraph& model, const std::string& checkpointing) {
  const ClusterSpec cluster = load_cluster("dgx-h100", 8);
  const ShardingPlan plan = plan_of(model, checkpointing);
  check(plan, model, "plan.json");
  Programs programs(resolve(model, plan, implementation_of(model), cluster));
  return predict(programs, default_costs(cluster));
}

bool near(double ours, double theirs, double tolerance) { return std::abs(ours - theirs) <= tolerance * theirs; }

const std::vector<std::string> kFamilies = {"llama",    "qwen3", "phi3",  "olmo2",  "granite",
                                            "gpt_neox", "gpt2",  "olmoe", "mixtral"};

}  // namespace

TEST_CASE("an exported model has the parameters, ties and flops of the program's own") {
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const auto [exported, own] = models_of(family);
    REQUIRE(exported.parameters.size() == own.parameters.size());
    for (std::size_t p = 0; p < own.parameters.size(); ++p) {
      CHECK(exported.parameters[p].name == own.parameters[p].name);
      CHECK(exported.parameters[p].shape == own.parameters[p].shape);
      CHECK(exported.parameters[p].aliases == own.parameters[p].aliases);
    }
    CHECK(near(model_flops_per_token(exported, kTokens), model_flops_per_token(own, kTokens), 0.001));
  }
}

TEST_CASE("its blocks keep as many bytes for backward") {
  const ClusterSpec cluster = load_cluster("dgx-h100", 8);
  const Costs costs = default_costs(cluster);
  const auto saved = [&](const ModelGraph& model) {
    const ShardingPlan plan = plan_of(model, "none");
    std::vector<double> bytes;
    for (const ModuleCost& cost : module_costs({model, plan, implementation_of(model), cluster, costs}))
      if (model.modules[static_cast<std::size_t>(cost.module)].block)
        bytes.push_back(static_cast<double>(cost.saved.count()));
    return bytes;
  };
  for (const std::string& family : kFamilies) {
    CAPTURE(family);
    const auto [exported, own] = models_of(family);
    const std::vector<double> ours = saved(exported), theirs = saved(own);
    REQUIRE(ours.size() == theirs.size());
    // The last: what the first block keeps first (tables of angles) is not told apart.
    CHECK(near(ours.back(), theirs.back(), 0.005));
  }
}

TEST_CASE("its predicted peaks are within 0.5 %, and its step is within 5 %") {
  for (const std::string& family : kFamilies) {
    const auto [exported, own] = models_of(family);
    for (const char* checkpointing : {"none", "full", "selective-op"}) {
      CAPTURE(family);
      CAPTURE(std::string(checkpointing));
      const Prediction ours = predicted(exported, checkpointing), theirs = predicted(own, checkpointing);
      const auto bytes = [](const Prediction& p) { return static_cast<double>(p.peak_allocated.count()); };
      CAPTURE(bytes(ours) - bytes(theirs));
      // Of Mixtral's experts in a recomputation the program's own model lets go of one result too early.
      const bool experts_again = family == "mixtral" && std::string(checkpointing) != "none";
      CHECK(near(bytes(ours), bytes(theirs), experts_again ? 0.05 : 0.005));
      CHECK(near(ours.step_time.count(), theirs.step_time.count(), 0.05));
    }
  }
}
