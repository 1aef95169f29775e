// Differences of two plans: taken one after the other they turn the one plan into the other.
#include "planner/questions/differences.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "planner/search/plan_choices.h"
#include "tests/support/any_plan.h"

using namespace fsdp;

namespace {

// What decides nothing.
ShardingPlan without_names(ShardingPlan p) {
  p.wrap = p.model_name = p.model_digest = "";
  p.seed = 0;
  return p;
}

std::vector<std::string> choices(const std::vector<Difference>& all) {
  std::vector<std::string> names;
  for (const Difference& d : all) names.push_back(d.choice);
  return names;
}

}  // namespace

TEST_CASE("differences, taken one after the other, turn a plan into the other, and a plan has none with itself") {
  std::size_t most = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    ModelGraph model = toy::model();
    ShardingPlan now = testing::any_plan(model, false, random);
    const ShardingPlan other = testing::any_plan(model, false, random);
    CHECK(differences(now, now, model).empty());
    const std::vector<Difference> all = differences(now, other, model);
    most = std::max(most, all.size());
    int steps = 0;
    for (std::vector<Difference> left = all; !left.empty(); left = differences(now, other, model)) {
      now = left.front().alone;
      REQUIRE(++steps <= 32);
    }
    CHECK(without_names(now) == without_names(other));
  }
  CHECK(most >= 8);
}

TEST_CASE("a choice alone is the plan that its flag makes") {
  const ModelGraph model = load_model("llama3-8b", 8192);
  const PlanTarget target{.ranks = 16, .seq_len = 8192};
  const auto plan = [&](auto&& change) {
    PlanChoices c;
    c.wrap = "titan", c.reshard = Reshard::yes, c.micro_batch = 2, c.checkpointing = "selective-op:first-8";
    change(c);
    return plan_of(c, model, target);
  };
  const ShardingPlan chosen = plan([](PlanChoices&) {});
  struct Case {
    const char* choice;
    const char* said;
    void (*change)(PlanChoices&);
  };
  const Case cases[] = {
      {"wrap", "block:2 (17 units)", [](PlanChoices& c) { c.wrap = "block:2"; }},
      {"reshard after forward", "false", [](PlanChoices& c) { c.reshard = Reshard::no; }},
      {"reshard after forward", "auto", [](PlanChoices& c) { c.reshard = Reshard::automatic; }},
      {"micro-batch", "4 x 2", [](PlanChoices& c) { c.micro_batch = 4, c.grad_accum = 2; }},
      {"mesh", "2 x 8", [](PlanChoices& c) { c.replicate = 2; }},
      {"loss chunks", "4", [](PlanChoices& c) { c.loss_chunks = 4; }},
      {"activation checkpointing", "full", [](PlanChoices& c) { c.checkpointing = "full"; }},
      {"gradient sync", "last", [](PlanChoices& c) { c.grad_sync = GradSync::last; }},
      {"offload", "yes", [](PlanChoices& c) { c.offload = true; }},
      {"products in 8 bits", "tensorwise", [](PlanChoices& c) { c.float8 = Float8Recipe::tensorwise; }},
      {"optimizer", "sgd, lr 0.0003, weight decay 0.1, clip none",
       [](PlanChoices& c) { c.optimizer = OptimizerKind::sgd; }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.choice);
    const ShardingPlan changed = plan(c.change);
    const std::vector<Difference> found = differences(chosen, changed, model);
    CHECK(choices(found) == std::vector<std::string>{c.choice});
    REQUIRE(!found.empty());
    CHECK(found[0].other == c.said);
    CHECK(without_names(found[0].alone) == without_names(changed));
    const std::string choice = c.choice;
    CHECK(found[0].other_training == (choice == "optimizer" || choice == "products in 8 bits"));
  }
  // Of several, each is the plan of one flag.
  const ShardingPlan several =
      plan([](PlanChoices& c) { c.wrap = "block:2", c.reshard = Reshard::no, c.loss_chunks = 4; });
  const std::vector<Difference> all = differences(chosen, several, model);
  REQUIRE(choices(all) == std::vector<std::string>{"wrap", "reshard after forward", "loss chunks"});
  CHECK(without_names(all[0].alone) == without_names(plan(cases[0].change)));
  CHECK(without_names(all[1].alone) == without_names(plan(cases[1].change)));
  CHECK(without_names(all[2].alone) == without_names(plan(cases[5].change)));
}
