// Of plans that are nearly as fast, the one that is less likely to run out of memory.
#include <doctest/doctest.h>

#include <algorithm>

#include "models/catalog.h"
#include "planner/job.h"
#include "planner/search/plan_choices.h"
#include "simulator/predict.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

// A risk that rises in a straight line over the last part of the memory.
struct Asked {
  double most = 0;  // at the limit
  double part = 0.2;
  ModelGraph model =
      small_llama({.layers = 8, .vocab = 4096, .hidden = 2048, .inner = 6144, .heads = 16, .kv_heads = 8});
  ClusterSpec cluster = load_cluster("dgx-h100", 8);
  Costs costs = default_costs(cluster);
  const Implementation& implementation = find_implementation("torchtitan", false, "test");
  Bytes limit = Bytes(9'000'000'000);

  [[nodiscard]] PlanResult found(Effort effort = Effort::joint) const {
    SearchOptions o = search_of({}, model, {.ranks = cluster.gpus, .seq_len = 4096});
    o.selective_op = true;
    o.memory_limit = limit;
    o.effort = effort;
    return search(model, cluster, implementation, o, [&](const ShardingPlan& plan) {
      Programs programs(resolve(model, plan, implementation, cluster));
      const Prediction p = predict(programs, costs, {.memory_limit = limit, .keep_timeline = false});
      Score s{p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
      const double full = static_cast<double>(p.peak_total.count()) / static_cast<double>(limit.count());
      s.out_of_memory = most * std::clamp((full - (1 - part)) / part, 0.0, 1.0);
      return s;
    });
  }
};

double seconds_per_sequence(const Candidate& c) {
  return c.score.step.count() / static_cast<double>(c.plan.sequences_per_rank());
}
double worth(const Candidate& c) { return seconds_per_sequence(c) * with_risk(c.score); }

}  // namespace

TEST_CASE("a plan of less risk is taken where that is worth the time, and the fastest is named") {
  Asked a;
  a.limit = Bytes(12'000'000'000);
  const PlanResult careless = a.found();
  REQUIRE(careless.best);
  REQUIRE(careless.uniform);
  CHECK_FALSE(careless.fastest);
  int calmer = 0;
  double before = 1;
  for (const double most : {0.02, 0.1, 0.4}) {
    CAPTURE(most);
    a.most = most;
    const PlanResult r = a.found();
    REQUIRE(r.best);
    CHECK(r.best->score.verdict == Verdict::fits);
    CHECK(seconds_per_sequence(*r.best) >= seconds_per_sequence(*careless.best) * (1 - 1e-12));
    const double full = static_cast<double>(r.best->score.peak_total.count()) / static_cast<double>(a.limit.count());
    CHECK(full <= before);  // the worse the risk, the more is kept free
    before = full;
    if (!r.fastest) continue;
    ++calmer;
    CHECK(worth(*r.best) < worth(*r.fastest));
    CHECK(seconds_per_sequence(*r.best) > seconds_per_sequence(*r.fastest));
    CHECK(r.best->score.out_of_memory < r.fastest->score.out_of_memory);
    CHECK(r.fastest->why_lost.clause.find("faster, but out of memory") != std::string::npos);
  }
  CHECK(calmer > 0);
}

TEST_CASE("however great the risk, nothing slower than the best plan that treats all blocks alike is taken") {
  Asked a;
  a.limit = Bytes(12'000'000'000);
  a.most = 1;
  a.part = 0.5;
  const PlanResult joint = a.found(), uniform = a.found(Effort::uniform);
  REQUIRE(joint.best);
  REQUIRE(uniform.best);
  CHECK(seconds_per_sequence(*joint.best) <= seconds_per_sequence(*uniform.best) * (1 + 1e-9));
}
