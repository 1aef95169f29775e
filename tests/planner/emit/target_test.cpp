// What a target can say is what its emitter writes without a loss; a search for the target chooses nothing else.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/emit.h"
#include "planner/search.h"
#include "planner/search/design.h"
#include "planner/search/plan_choices.h"
#include "tests/support/refusal.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

struct Asked {
  ModelGraph model = small_llama({.layers = 4, .hidden = 32, .inner = 48});
  ClusterSpec cluster = load_cluster("dgx-h100", 16);
  [[nodiscard]] SearchOptions options() const {
    SearchOptions o = search_of({}, model, {.ranks = cluster.gpus, .seq_len = 64});
    o.selective_op = true;
    o.memory_limit = Bytes(std::int64_t{1} << 40);
    o.effort = Effort::joint;
    return o;
  }
};

// Plans from all over the space that a joint search chooses from.
std::vector<ShardingPlan> plans_of(const Asked& a, int count) {
  const Space space = space_of(a.model, a.cluster, a.options());
  std::mt19937 random(7);
  std::vector<ShardingPlan> plans;
  while (static_cast<int>(plans.size()) < count) {
    Design d = first_design(space);
    for (std::size_t step = random() % 8; step-- > 0;) {
      const Knob& knob = knobs()[random() % knobs().size()];
      const std::vector<Design> near = knob.near(d, space);
      if (!near.empty()) d = near[random() % near.size()];
    }
    const auto& ladder = space.ladders[random() % space.ladders.size()];
    const ShardingPlan plan = plan_of(d, space, ladder[random() % 2 == 0 ? 0 : random() % ladder.size()]);
    try {
      check(plan, a.model);
      plans.push_back(plan);
    } catch (const InputError&) {
    }
  }
  return plans;
}

// The choices of a search alone: what of two plans that have them is one plan to it.
bool chosen_alike(ShardingPlan a, const ShardingPlan& b) {
  a.wrap = b.wrap;
  const auto one = [](const auto& x, const auto& y, auto... members) { return (... && (x.*members == y.*members)); };
  return one(a, b, &ShardingPlan::mesh, &ShardingPlan::micro_batches, &ShardingPlan::grad_sync,
             &ShardingPlan::loss_chunks, &ShardingPlan::checkpointed, &ShardingPlan::checkpoint_policy,
             &ShardingPlan::forward_prefetch, &ShardingPlan::reduce_scatter_buffers,
             &ShardingPlan::separate_reduce_scatter) &&
         std::is_permutation(a.units.begin(), a.units.end(), b.units.begin(), b.units.end());
}

}  // namespace

TEST_CASE("no plan of the default search uses a choice that no emitter has") {
  const Asked a;
  for (const ShardingPlan& plan : plans_of(a, 150)) {
    CAPTURE(to_json_text(plan));
    const std::vector<Inexact> lost = unsayable("pytorch", plan, a.model);
    CHECK_MESSAGE(lost.empty(), (lost.empty() ? "" : lost.front().text()));
  }
}

TEST_CASE("a target can say a plan exactly where its file holds every choice of the search") {
  const Asked a;
  const std::vector<ShardingPlan> plans = plans_of(a, 150);
  for (const std::string& format : emit_formats()) {
    CAPTURE(format);
    for (const ShardingPlan& plan : plans) {
      CAPTURE(to_json_text(plan));
      const Emitted emitted = emit(format, plan, a.model);
      if (emitted.predictable()) CHECK(unsayable(format, plan, a.model).empty() == chosen_alike(emitted.written, plan));
    }
  }
}

TEST_CASE("a search for a target chooses what its file holds, and says why it refuses what the user fixed") {
  const Asked a;
  for (const std::string& format : emit_formats()) {
    CAPTURE(format);
    SearchOptions o = a.options();
    o.rule = [&](const ShardingPlan& plan) {
      std::string lost;
      for (const Inexact& i : unsayable(format, plan, a.model)) lost += i.text() + "; ";
      if (!lost.empty()) throw InputError(setting("target"), lost);
    };
    // Everything that a target may not have is quicker.
    const auto score = [](const ShardingPlan& p) {
      Score s;
      s.verdict = Verdict::fits;
      double seconds = 100 - p.loss_chunks - 5 * p.forward_prefetch - 3 * p.reduce_scatter_buffers -
                       static_cast<double>(p.units.size()) / 10;
      for (const Unit& u : p.units) seconds -= u.reshard_after_forward == Reshard::no ? 0.5 : 0;
      s.step = Seconds(seconds * static_cast<double>(p.sequences_per_rank()));
      return s;
    };
    const auto targets = emit_targets();
    if (std::find(targets.begin(), targets.end(), format) == targets.end()) {
      CHECK(testing::refusal([&] {
              (void)search(a.model, a.cluster, find_implementation("torchtitan", false, "test"), o, score);
            }).find("units") != std::string::npos);
      continue;
    }
    const PlanResult r = search(a.model, a.cluster, find_implementation("torchtitan", false, "test"), o, score);
    REQUIRE(r.best);
    CHECK(unsayable(format, r.best->plan, a.model).empty());
    PlanChoices fixed;
    fixed.loss_chunks = 4;
    SearchOptions narrowed = search_of(fixed, a.model, {.ranks = 16, .seq_len = 64});
    narrowed.rule = o.rule;
    narrowed.memory_limit = o.memory_limit;
    if (format == "pytorch" || format == "lightning") continue;  // they hold the whole plan
    std::string why;
    try {
      (void)search(a.model, a.cluster, find_implementation("torchtitan", false, "test"), narrowed, score);
    } catch (const InputError& e) {
      why = e.problem();
    }
    CHECK_MESSAGE(why.find("loss_chunks") != std::string::npos, why);
  }
}
