// What each module costs by itself, against counts that follow from the shapes.
#include "planner/module_costs.h"

#include <doctest/doctest.h>

#include "models/catalog.h"
#include "planner/plan/naive_plan.h"
#include "tests/support/relative.h"

using namespace fsdp;

namespace {

std::vector<ModuleCost> costs_of(const char* name, std::int64_t gpus, std::int64_t micro_batch) {
  const ModelGraph model = load_model(name);
  const ClusterSpec cluster = load_cluster("dgx-h100", gpus);
  PlanOptions options;
  options.ranks = gpus;
  options.seq_len = 1024;
  options.micro_batches = {micro_batch};
  const ShardingPlan plan = naive_plan(model, options);
  return module_costs({model, plan, torchtitan_implementation(false), cluster, default_costs(cluster)});
}

}  // namespace

TEST_CASE("the root is the whole model and a parent is at least its children") {
  const ModelGraph model = load_model("llama3-8b");
  const auto costs = costs_of("llama3-8b", 8, 1);
  REQUIRE(costs.size() == model.modules.size());
  CHECK(costs[0].parameters == 8'030'261'248);
  // Every dimension 0 of this model divides by 8, so nothing is padded: 4 bytes (fp32 master) of an eighth.
  CHECK(costs[0].shard.count() == 8'030'261'248 / 8 * 4);
  for (std::size_t m = 1; m < costs.size(); ++m) {
    const ModuleCost& parent = costs[static_cast<std::size_t>(model.modules[m].parent)];
    CHECK(parent.parameters >= costs[m].parameters);
    CHECK(parent.forward >= costs[m].forward);
    CHECK(parent.saved >= costs[m].saved);
    CHECK((costs[m].all_gather.count() > 0) == (costs[m].parameters > 0));
  }
  // A block: q and o 4096 x 4096, k and v 1024 x 4096, three of 14336 x 4096, two norms of 4096.
  const std::int32_t block = model.find_module("model.layers.0");
  CHECK(costs[static_cast<std::size_t>(block)].parameters ==
        2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096);
}

TEST_CASE("equal blocks cost the same; fp32 gradients move twice the bytes of bf16 parameters") {
  const ModelGraph model = load_model("llama3-8b");
  const auto costs = costs_of("llama3-8b", 8, 1);
  const ModuleCost& first = costs[static_cast<std::size_t>(model.find_module("model.layers.0"))];
  const ModuleCost& last = costs[static_cast<std::size_t>(model.find_module("model.layers.31"))];
  CHECK(first.forward.count() == relative(last.forward.count()).epsilon(1e-9));
  CHECK(first.saved == last.saved);
  CHECK(first.reduce_scatter.count() / first.all_gather.count() == relative(2).epsilon(0.05));  // latency is the rest
  CHECK(first.backward.count() / first.forward.count() > 1.5);
}

TEST_CASE("twice the sequences save twice the bytes; one GPU communicates nothing") {
  const auto one = costs_of("llama3-8b", 8, 1);
  const auto two = costs_of("llama3-8b", 8, 2);
  CHECK(two[0].saved.count() == 2 * one[0].saved.count());
  const auto alone = costs_of("tiny-llama", 1, 1);
  CHECK(alone[0].all_gather.count() == 0);
  CHECK(alone[0].reduce_scatter.count() == 0);
  CHECK(alone[0].shard.count() == alone[0].parameters * 4);
}
