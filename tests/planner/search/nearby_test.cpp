// What a plan becomes under another implementation: nothing near it is worse than the plan itself.
#include "planner/search/nearby.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "models/catalog.h"
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
  const Implementation& eager = find_implementation("torchtitan", false, "test");
  const Implementation& compiled = find_implementation("torchtitan", true, "test");
  Bytes limit = default_memory_limit(cluster);

  [[nodiscard]] SearchOptions options(std::optional<std::int64_t> global_batch = {}) const {
    PlanChoices choices;
    choices.global_batch = global_batch;
    SearchOptions o = search_of(choices, model, {.ranks = cluster.gpus, .seq_len = 4096});
    o.selective_op = true;
    o.memory_limit = limit;
    o.effort = Effort::joint;
    return o;
  }
  [[nodiscard]] ScoreFunction score(const Implementation& implementation) const {
    return [this, &implementation](const ShardingPlan& plan) {
      Programs programs(resolve(model, plan, implementation, cluster));
      const Prediction p = predict(programs, costs, {.memory_limit = limit, .keep_timeline = false});
      return Score{p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
    };
  }
};

double seconds_per_sequence(const Candidate& c) {
  return c.score.step.count() / static_cast<double>(c.plan.sequences_per_rank());
}

}  // namespace

TEST_CASE("a plan of the space is found again in it, whatever it recomputes") {
  const Asked a;
  const Space space = space_of(a.model, a.cluster, a.options(128));
  std::mt19937 random(16);
  int kept = 0, between = 0, once = 0;
  for (int walk = 0; walk < 150; ++walk) {
    Design d = first_design(space);
    for (int step = 0; step < 16; ++step) {
      const Knob& knob = knobs()[random() % knobs().size()];
      const std::vector<Design> near = knob.near(d, space);
      if (!near.empty()) d = near[random() % near.size()];
    }
    const auto& ladder = space.ladders[random() % space.ladders.size()];
    const ShardingPlan plan = plan_of(d, space, ladder[random() % ladder.size()]);
    CAPTURE(label_of(d, space, "?"));
    const std::optional<Design> again = design_of(plan, space);
    REQUIRE(again);
    CHECK(plan_of(*again, space, "none") == plan_of(d, space, "none"));
    kept += d.kept > 0;
    between += d.kept_between;
    once += d.embedding_once;
  }
  CHECK(kept > 5);
  CHECK(between > 5);
  CHECK(once > 0);
  ShardingPlan other = plan_of(first_design(space), space, "none");
  other.units.front().reshard_after_forward = Reshard{2};
  CHECK_FALSE(design_of(other, space));
}

TEST_CASE("under the compiled implementation a plan is scored as it is, and what is near it is not slower") {
  Asked a;
  int better = 0;
  for (const double part : {1.0, 0.3, 0.15}) {
    CAPTURE(part);
    a.limit = Bytes(static_cast<std::int64_t>(part * static_cast<double>(default_memory_limit(a.cluster).count())));
    SearchOptions o = a.options();
    o.effort = Effort::uniform;
    const PlanResult found = search(a.model, a.cluster, a.eager, o, a.score(a.eager));
    REQUIRE(found.best);
    const Candidate& best = *found.best;
    const Nearby same = search_near(best.plan, best.label, a.model, a.cluster, a.compiled, o, a.score(a.compiled));
    REQUIRE(same.same);
    CHECK_FALSE(same.better);
    CHECK(same.simulated == 1);
    CHECK(same.same->score.step == a.score(a.compiled)(best.plan).step);
    CHECK(same.same->score.peak_total < best.score.peak_total);
    const Nearby near =
        search_near(best.plan, best.label, a.model, a.cluster, a.compiled, a.options(), a.score(a.compiled));
    REQUIRE(near.same);
    CHECK(near.same->score.step == same.same->score.step);
    CHECK(near.simulated > 1);
    CHECK(near.simulated <= kNearbySimulations + 1);
    if (!near.better) continue;
    ++better;
    CHECK(near.better->score.verdict == Verdict::fits);
    CHECK(seconds_per_sequence(*near.better) < seconds_per_sequence(*near.same));
    CHECK(near.best() == &*near.better);
    CHECK_NOTHROW(check(near.better->plan, a.model));
  }
  CHECK(better > 0);
}

TEST_CASE("a plan that does not fit under the other implementation has one near it that does") {
  Asked a;
  a.limit = Bytes(12'000'000'000);
  SearchOptions o = a.options();
  const PlanResult found = search(a.model, a.cluster, a.compiled, o, a.score(a.compiled));
  REQUIRE(found.best);
  REQUIRE(found.best->score.verdict == Verdict::fits);
  const Candidate& best = *found.best;
  const Nearby near = search_near(best.plan, best.label, a.model, a.cluster, a.eager, o, a.score(a.eager));
  REQUIRE(near.same);
  REQUIRE(near.same->score.verdict != Verdict::fits);
  REQUIRE(near.better);
  CHECK(near.better->score.verdict == Verdict::fits);
}
