// Which number of tensor ranks a search ends with: never one that another beats by more than what it says.
#include "planner/bound/tensor_sizes.h"

#include <doctest/doctest.h>

#include <vector>

#include "models/input/error.h"
#include "planner/job.h"
#include "planner/search/plan_choices.h"
#include "simulator/predict.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

struct Asked {
  ModelGraph model =
      small_llama({.layers = 6, .vocab = 4096, .hidden = 2048, .inner = 6144, .heads = 16, .kv_heads = 8});
  ClusterSpec cluster = load_cluster("dgx-h100", 16);
  Costs costs = default_costs(cluster);
  const Implementation& implementation = find_implementation("torchtitan", false, "test");
  std::optional<std::int64_t> global_batch;
  std::int64_t seq_len = 4096;
  Bytes limit = default_memory_limit(cluster);

  [[nodiscard]] SearchOptions options(std::int64_t tensor) const {
    PlanChoices choices;
    choices.tensor = tensor;
    choices.global_batch = global_batch;
    SearchOptions o = search_of(choices, model, {.ranks = cluster.gpus, .seq_len = seq_len});
    o.selective_op = true;
    o.memory_limit = limit;
    o.effort = Effort::joint;
    return o;
  }
  [[nodiscard]] Score score(const ShardingPlan& plan) const {
    Programs programs(resolve(model, plan, implementation, cluster));
    const Prediction p = predict(programs, costs, {.memory_limit = limit, .keep_timeline = false});
    return {p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
  }
  [[nodiscard]] SizesResult searched(const std::vector<std::int64_t>& sizes) const {
    return search_sizes(
        sizes, [&](std::int64_t t) { return options(t); }, model, cluster, implementation, costs,
        [&](const ShardingPlan& p) { return score(p); });
  }
};

double taken(const SizeSearched& s) {
  REQUIRE(s.fits());
  return gpu_seconds_per_sequence(s.result->best->plan, s.result->best->score.step);
}

}  // namespace

TEST_CASE("what was left out by certificate or without a joint search is not faster by what it would have to be") {
  for (const auto& [global_batch, seq_len] :
       {std::pair<std::optional<std::int64_t>, std::int64_t>{{}, 4096}, {16, 4096}, {32, 16384}}) {
    Asked a;
    a.global_batch = global_batch;
    a.seq_len = seq_len;
    const SizesResult r = a.searched({1, 2, 4, 8});
    REQUIRE(r.sizes.size() == 4);
    const double best = taken(r.chosen());
    for (const SizeSearched& s : r.sizes) {
      CAPTURE(s.tensor);
      CHECK(s.refusal.empty());
      const SizesResult alone = a.searched({s.tensor});
      CHECK(taken(alone.chosen()) * kWorthSplitting >= best * (1 - 1e-9));
    }
  }
}

TEST_CASE("with fewer sequences than ranks layers are split over as many ranks as that needs") {
  Asked a;
  a.global_batch = 4;
  const SizesResult r = a.searched(tensor_sizes(a.cluster));
  CHECK(r.sizes.size() == 4);  // 1, 2, 4, 8: a node
  CHECK_FALSE(r.sizes[0].refusal.empty());
  CHECK_FALSE(r.sizes[1].refusal.empty());
  CHECK(r.chosen().tensor >= 4);
  CHECK(r.chosen().result->best->plan.tensor() == r.chosen().tensor);
  CHECK(r.chosen().result->best->plan.tokens_per_step() == 4 * a.seq_len);
}

TEST_CASE("where no size is possible the reason of the first is the error") {
  Asked a;
  a.global_batch = 1;
  CHECK_THROWS_AS(a.searched(tensor_sizes(a.cluster)), InputError);
}

TEST_CASE("with too little memory the answer is that of the first size") {
  Asked a;
  a.limit = Bytes(std::int64_t{1} << 30);
  const SizesResult r = a.searched({1, 2});
  CHECK_FALSE(r.chosen().result->best);
  CHECK(r.chosen().tensor == 1);
  CHECK_FALSE(r.chosen().result->why_none.empty());
}
