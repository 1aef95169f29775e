// The joint search: held against every plan of a small space, and against the search of plans that treat all blocks
// alike.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/job.h"
#include "planner/search/design.h"
#include "planner/search/plan_choices.h"
#include "planner/wrap.h"
#include "simulator/predict.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

struct Setting {
  ModelGraph model =
      small_llama({.layers = 6, .vocab = 4096, .hidden = 2048, .inner = 6144, .heads = 16, .kv_heads = 8});
  ClusterSpec cluster = load_cluster("dgx-h100", 8);
  Costs costs = default_costs(cluster);
  const Implementation& implementation = find_implementation("torchtitan", false, "test");
  Bytes limit = default_memory_limit(cluster);

  [[nodiscard]] SearchOptions options(PlanChoices choices) const {
    SearchOptions o = search_of(choices, model, {.ranks = cluster.gpus, .seq_len = 4096});
    o.selective_op = implementation.keeps_selectively != nullptr;
    o.memory_limit = limit;
    o.effort = Effort::joint;
    return o;
  }
  [[nodiscard]] Score score(const ShardingPlan& plan) const {
    Programs programs(resolve(model, plan, implementation, cluster));
    const Prediction p = predict(programs, costs, {.memory_limit = limit, .keep_timeline = false});
    return {p.step_time, p.peak_total, p.verdict, p.where, Bytes(p.memory.host_peak), p.alloc_retries};
  }
  [[nodiscard]] PlanResult search(const SearchOptions& o) const {
    return fsdp::search(model, cluster, implementation, o, [this](const ShardingPlan& p) { return score(p); });
  }
};

double seconds_per_sequence(const Candidate& c) {
  return c.score.step.count() / static_cast<double>(c.plan.sequences_per_rank());
}

// A choice for each thing that a plan of `fixed` leaves open, so that what is open is small enough to be tried whole.
PlanChoices fixed_choices() {
  PlanChoices c;
  c.micro_batch = 4;
  c.wrap = "block";
  c.replicate = 1;
  c.reshard = Reshard::automatic;
  c.forward_prefetch = 0;
  c.reduce_scatter_buffers = 1;
  c.separate_reduce_scatter = false;
  c.grad_sync = GradSync::every;
  return c;
}

}  // namespace

TEST_CASE("a limit between two plans that treat all blocks alike gives a plan between them") {
  Setting s;
  PlanChoices choices = fixed_choices();
  choices.loss_chunks = 1;
  const auto with = [&](const char* checkpointing) {
    PlanChoices c = choices;
    c.checkpointing = checkpointing;
    return s.score(plan_of(c, s.model, {.ranks = 8, .seq_len = 4096}));
  };
  const Score none = with("none"), full = with("full");
  REQUIRE(none.peak_total > full.peak_total);
  s.limit = Bytes((none.peak_total.count() + full.peak_total.count()) / 2);
  const PlanResult r = s.search(s.options(choices));
  REQUIRE(r.best);
  CHECK(r.best->score.verdict == Verdict::fits);
  CHECK(r.best->score.step > none.step);
  CHECK(r.best->score.step < full.step);
  REQUIRE(r.uniform);
  CHECK(r.best->score.step < r.uniform->score.step);
  CHECK(r.uniform->why_lost.clause.find("% slower") != std::string::npos);
}

TEST_CASE("of a small space the joint search finds what trying every plan finds") {
  Setting s;
  for (const double part : {0.75, 0.5, 0.4, 0.3}) {
    CAPTURE(part);
    s.limit = Bytes(static_cast<std::int64_t>(part * 20e9));
    const SearchOptions o = s.options(fixed_choices());
    const Space space = space_of(s.model, s.cluster, o);
    double best = std::numeric_limits<double>::infinity();
    for (const std::int64_t chunks : space.chunks)
      for (const auto& ladder : space.ladders)
        for (const std::string& rung : ladder) {
          Design d = first_design(space);
          d.loss_chunks = chunks;
          const ShardingPlan plan = plan_of(d, space, rung);
          check(plan, s.model);
          const Score score = s.score(plan);
          if (score.verdict == Verdict::fits) best = std::min(best, score.step.count() / 4);
        }
    const PlanResult r = s.search(o);
    if (best == std::numeric_limits<double>::infinity()) {
      CHECK_FALSE((r.best && r.best->score.verdict == Verdict::fits));
      continue;
    }
    REQUIRE(r.best);
    CHECK(seconds_per_sequence(*r.best) <= best * 1.003);  // what few use must gain more than this
  }
}

TEST_CASE("never slower than the search of plans that treat all blocks alike") {
  Setting s;
  for (const double part : {1.0, 0.3, 0.15}) {
    for (const std::int64_t global : {0, 64}) {
      CAPTURE(part);
      CAPTURE(global);
      s.limit = Bytes(static_cast<std::int64_t>(part * static_cast<double>(default_memory_limit(s.cluster).count())));
      PlanChoices choices;
      if (global > 0) choices.global_batch = global;
      SearchOptions o = s.options(choices);
      const PlanResult joint = s.search(o);
      o.effort = Effort::uniform;
      const PlanResult uniform = s.search(o);
      REQUIRE(joint.best);
      REQUIRE(uniform.best);
      CHECK(seconds_per_sequence(*joint.best) <= seconds_per_sequence(*uniform.best) * (1 + 1e-9));
      CHECK_NOTHROW(check(joint.best->plan, s.model));
      CHECK(joint.simulated_jointly > 0);
      CHECK(uniform.simulated_jointly == 0);
      if (global > 0) CHECK(joint.best->plan.tokens_per_step() == 64 * 4096);
    }
  }
}

TEST_CASE("what a user fixed, or the dialect does not have, stays as it is") {
  Setting s;
  PlanChoices choices = fixed_choices();
  choices.loss_chunks = 2;
  choices.checkpointing = "every-2";
  const PlanResult fixed = s.search(s.options(choices));
  REQUIRE(fixed.best);
  CHECK(fixed.best->plan.loss_chunks == 2);
  CHECK(fixed.best->plan.wrap == "block");
  CHECK(fixed.best->plan.checkpointed == checkpointed_modules(s.model, "every-2", "test"));
  CHECK(fixed.best->plan.reduce_scatter_buffers == 1);
  PlanChoices older;
  older.torch = {2, 12};
  const Space space = space_of(s.model, s.cluster, s.options(older));
  CHECK(space.buffers == std::vector<int>{1});
  CHECK_FALSE(space.second_communicator_free);
  PlanChoices fsdp1;
  fsdp1.dialect = Dialect::fsdp1;
  const PlanResult r = s.search(s.options(fsdp1));
  REQUIRE(r.best);
  CHECK(r.best->plan.loss_chunks == 1);
  CHECK(std::all_of(r.best->plan.units.begin(), r.best->plan.units.end(),
                    [](const Unit& u) { return u.unshard_in_backward && u.reshard_after_backward; }));
}

TEST_CASE("a search may be cut short, and says so") {
  Setting s;
  s.limit = Bytes(8'000'000'000);
  SearchOptions o = s.options({});
  o.most_simulations = 3;
  const PlanResult r = s.search(o);
  CHECK(r.exhausted);
  CHECK(r.simulated_jointly <= 3);
}

TEST_CASE("every plan of a space is legal or refused by a rule, and labels tell plans apart") {
  const Setting s;
  const SearchOptions o = s.options({});
  const Space space = space_of(s.model, s.cluster, o);
  const Design first = first_design(space);
  std::vector<std::string> labels;
  for (const Knob& knob : knobs()) {
    for (const Design& next : knob.near(first, space)) {
      CAPTURE(knob.name);
      CHECK(next != first);
      const ShardingPlan plan = plan_of(next, space, "none");
      CHECK(plan != plan_of(first, space, "none"));
      labels.push_back(label_of(next, space, "none"));
    }
  }
  CHECK(labels.size() > 15);
  std::sort(labels.begin(), labels.end());
  CHECK(std::adjacent_find(labels.begin(), labels.end()) == labels.end());
}
