// A folded model stands for the whole one in the parts that bounds are made of: exactly, block by block.
#include "planner/bound/fold.h"

#include <doctest/doctest.h>

#include <string>

#include "models/catalog.h"
#include "planner/bound/folded_space.h"
#include "planner/bound/reference.h"
#include "planner/bound/tensor_sizes.h"
#include "planner/costs.h"
#include "planner/search/plan_choices.h"
#include "planner/tensor/split.h"
#include "planner/wrap.h"

using namespace fsdp;

namespace {

struct Measured {
  ComputeParts whole, folded;
};

// Of plans in units of one block, over so many tensor ranks.
Measured measured(const ModelGraph& model, const Folded& folded, const char* implementation, bool compiled,
                  std::int64_t tensor, const std::string& checkpointing) {
  const ClusterSpec cluster = load_cluster("dgx-h100", 16);
  const Costs costs = default_costs(cluster);
  const Implementation& impl = find_implementation(implementation, compiled, "test");
  const auto parts = [&](const ModelGraph& m) {
    PlanChoices choices;
    choices.tensor = tensor;
    SearchOptions o = search_of(choices, m, {.ranks = 16, .seq_len = 1024});
    o.selective_op = true;
    o.memory_limit = Bytes(std::int64_t{80} << 30);
    const Space space = space_of(m, cluster, o);
    const ModelGraph local = tensor > 1 ? split_over_tensor(m, space.base) : m;
    Design d = first_design(space);
    d.batch = {2, 1};
    return compute_parts(d, checkpointing, {space, local, impl, cluster, costs});
  };
  return {parts(model), parts(folded.model)};
}

void check_equal(const ComputeParts::Part& a, const ComputeParts::Part& b) {
  CHECK(a.kernels.seconds() == doctest::Approx(b.kernels.seconds()).epsilon(1e-12));
  CHECK(a.saved == b.saved);
  CHECK(a.backward == b.backward);
}

}  // namespace

TEST_CASE("what a block costs and holds does not depend on the blocks that are left out") {
  struct Case {
    const char *model, *implementation;
    bool compiled = false;
    std::int64_t tensor = 1;
  };
  for (const Case& c : {Case{"llama3-8b", "torchtitan"}, Case{"llama3-8b", "torchtitan", true},
                        Case{"llama3-8b", "torchtitan", false, 4}, Case{"llama3-8b", "hf"}, Case{"gpt2", "hf"},
                        Case{"qwen3-0.6b", "native"}, Case{"mixtral-8x7b", "hf"}}) {
    CAPTURE(c.model);
    CAPTURE(c.implementation);
    CAPTURE(c.tensor);
    const ModelGraph model = load_model(c.model);
    const auto folded = fold(model);
    REQUIRE(folded);
    for (const std::string policy : {"none", "full", "selective-op"}) {
      if (policy == "selective-op" && c.implementation != std::string("torchtitan")) continue;
      CAPTURE(policy);
      const Measured m = measured(model, *folded, c.implementation, c.compiled, c.tensor, policy);
      REQUIRE(m.whole.blocks.size() == folded->stands_for.size());
      REQUIRE(m.folded.blocks.size() == 4);
      for (std::size_t b = 0; b < m.whole.blocks.size(); ++b) {
        CAPTURE(b);
        check_equal(m.whole.blocks[b], m.folded.blocks[folded->stands_for[b]]);
      }
      check_equal(m.whole.rest, m.folded.rest);
      CHECK(m.whole.rest.kernels.seconds() > 0);
    }
  }
}

namespace {

void check_same(const ShardingParts::Part& a, const ShardingParts::Part& b) {
  CHECK(a.all_gather == b.all_gather);
  CHECK(a.reduce_scatter == b.reduce_scatter);
  CHECK(a.all_reduce == b.all_reduce);
  CHECK(a.after_gather.seconds() == b.after_gather.seconds());
  CHECK(a.before_reduce.seconds() == b.before_reduce.seconds());
  CHECK(a.each_step.seconds() == b.each_step.seconds());
  CHECK(a.whole == b.whole);
  CHECK(a.gradient == b.gradient);
  CHECK(a.sharded_gradient == b.sharded_gradient);
}

void check_same(const ShardingParts& a, const ShardingParts& b) {
  REQUIRE(a.possible);
  CHECK(a.states == b.states);
  CHECK(a.gradients == b.gradients);
  CHECK(a.last_unit == b.last_unit);
  CHECK(a.first_gather == b.first_gather);
  CHECK(a.last_reduction == b.last_reduction);
  CHECK(a.last_all_reduce == b.last_all_reduce);
  REQUIRE(a.blocks.size() == b.blocks.size());
  for (std::size_t k = 0; k < a.blocks.size(); ++k) check_same(a.blocks[k], b.blocks[k]);
  check_same(a.rest, b.rest);
}

}  // namespace

TEST_CASE("what a unit costs does not depend on the units that are left out") {
  struct Case {
    const char *model, *implementation;
    std::int64_t tensor = 1;
  };
  for (const Case& c : {Case{"llama3-8b", "torchtitan"}, Case{"llama3-8b", "torchtitan", 4}, Case{"gpt2", "hf"},
                        Case{"qwen3-0.6b", "native"}}) {
    CAPTURE(c.model);
    CAPTURE(c.tensor);
    const ModelGraph model = load_model(c.model);
    const ClusterSpec cluster = load_cluster("dgx-h100", 16);
    const Costs costs = default_costs(cluster);
    const Implementation& impl = find_implementation(c.implementation, false, "test");
    PlanChoices choices;
    choices.tensor = c.tensor;
    const LocalSpace whole =
        local_space(space_of(model, cluster, search_of(choices, model, {.ranks = 16, .seq_len = 1024})), impl);
    const PricedSpace priced{whole.space, whole.graph(), impl, cluster, costs};
    int folded = 0;
    for (std::size_t g = 0; g < whole.space.groupings.size(); ++g) {
      const Grouping& grouping = whole.space.groupings[g];
      CAPTURE(grouping.wrap);
      const auto together = blocks_together(grouping);
      CHECK(together.has_value() == (grouping.wrap != "root"));
      const auto units = together ? fold_units(model, *together) : std::nullopt;
      if (!units) continue;
      ++folded;
      const LocalSpace few =
          folded_space(whole.space, units->model, {grouping.wrap, wrap(units->model, grouping.wrap, "test")}, impl);
      const FewUnits of_few{{few.space, few.graph(), impl, cluster, costs}, units->stands_for};
      const Bytes limit(std::int64_t{1} << 40);
      for (const std::int64_t replicate : {1, 2})
        check_same(sharding_parts(replicate, g, limit, priced, &of_few), sharding_parts(replicate, g, limit, priced));
    }
    CHECK(folded > 3);
  }
}

TEST_CASE("a folded model is a model") {
  const ModelGraph model = load_model("llama3-8b");
  const auto folded = fold(model);
  REQUIRE(folded);
  check_graph(folded->model, "folded");
  CHECK(wrap_blocks(folded->model, 1).size() == 5);  // and the root
  CHECK(folded->stands_for.size() == 32);
}

TEST_CASE("models whose blocks differ are not folded") {
  CHECK_FALSE(fold(load_model("tiny-llama")));  // too few
  ModelGraph traced = load_model("llama3-8b");
  traced.trace.ops.resize(1);  // of the whole model
  CHECK_FALSE(fold(traced));
  ModelGraph model = load_model("llama3-8b");
  const std::vector<std::string> frozen = {"model.layers.7.mlp"};
  CHECK_FALSE(fold(freeze(model, frozen, "test")));
  for (Op& op : model.ops)
    if (op.module >= 0 && model.modules[static_cast<std::size_t>(op.module)].name == "model.layers.20.self_attn")
      op.shape.window = 1024;
  CHECK_FALSE(fold(model));
}
