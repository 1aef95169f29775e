// The certificate's laws: no plan's simulated step is shorter than the bound on that very plan, and none that fits is
// faster than the bound on its space.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/bound/load.h"
#include "planner/bound/space_bound.h"
#include "planner/job.h"
#include "planner/lower.h"
#include "planner/search/plan_choices.h"
#include "simulator/engine/engine.h"
#include "simulator/predict.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

// Large enough for a GPU to be busy, small enough to simulate a thousand times.
ModelGraph model_of(std::int64_t hidden, bool tied) {
  const int h = static_cast<int>(hidden);
  return small_llama(
      {.layers = 6, .vocab = 4096, .hidden = h, .inner = 3 * h, .heads = 16, .kv_heads = 8, .tied = tied});
}

struct Question {
  const char* cluster;
  std::int64_t gpus, hidden, seq_len;
  const char* implementation;
  bool compiled, tied;
  std::optional<std::int64_t> global_batch;
};

// Intra-node and across nodes, resident matmuls (H100) and not (A100), eager and compiled, with micro-batches.
constexpr Question kQuestions[] = {
    {"dgx-h100", 8, 2048, 4096, "torchtitan", false, false, {}},
    {"dgx-h100", 32, 2048, 4096, "torchtitan", true, false, {}},
    {"dgx-a100-40", 16, 1024, 2048, "torchtitan", false, true, {}},
    {"p4d", 32, 1024, 4096, "hf", false, false, 256},
    {"dgx-h100", 64, 4096, 2048, "native", false, false, 512},
};

struct Asked {
  ModelGraph model;
  ClusterSpec cluster;
  Costs costs;
  const Implementation& implementation;
  SearchOptions options;
  Space space;

  explicit Asked(const Question& q)
      : model(model_of(q.hidden, q.tied)),
        cluster(load_cluster(q.cluster, q.gpus)),
        costs(default_costs(cluster)),
        implementation(find_implementation(q.implementation, q.compiled, "test")) {
    PlanChoices choices;
    choices.global_batch = q.global_batch;
    options = search_of(choices, model, {.ranks = q.gpus, .seq_len = q.seq_len});
    options.selective_op = implementation.keeps_selectively != nullptr;
    options.open = {true, true, true, true, true, true};
    space = space_of(model, cluster, options);
  }
  [[nodiscard]] Prediction predicted(const ShardingPlan& plan, Bytes limit) const {
    Programs programs(resolve(model, plan, implementation, cluster));
    return predict(programs, costs, {.memory_limit = limit, .keep_timeline = false});
  }
};

template <class T>
const T& any_of(const std::vector<T>& values, std::mt19937_64& random) {
  return values[random() % values.size()];
}

Design any_design(const Space& s, std::mt19937_64& random) {
  Design d = first_design(s);
  d.grouping = random() % s.groupings.size();
  d.reshard = any_of(s.reshards, random);
  d.kept = static_cast<std::int64_t>(random() % 5);
  d.kept_between = random() % 3 == 0;
  d.embedding_once = random() % 2 == 0;
  d.grad_sync = any_of(s.syncs, random);
  d.batch = any_of(s.batches, random);
  d.replicate = any_of(s.replicas, random);
  d.loss_chunks = any_of(s.chunks, random);
  d.forward_prefetch = any_of(s.forward_prefetches, random);
  d.reduce_scatter_buffers = any_of(s.buffers, random);
  d.separate_reduce_scatter = random() % 3 == 0;
  return d;
}

// A legal plan of the space, of at most eight micro-batches of moderate size; nullopt: the draw was none.
std::optional<ShardingPlan> any_plan(const Asked& a, std::mt19937_64& random) {
  const Design d = any_design(a.space, random);
  if (d.batch.grad_accum > 8 || d.batch.micro_batch > 16) return std::nullopt;
  ShardingPlan plan = plan_of(d, a.space, any_of(any_of(a.space.ladders, random), random));
  try {
    check(plan, a.model);
  } catch (const InputError&) {
    return std::nullopt;
  }
  return plan;
}

}  // namespace

TEST_CASE("no step is shorter than the bound on its own operations") {
  std::mt19937_64 random(1);
  double closest = 0;
  for (const Question& q : kQuestions) {
    const Asked a(q);
    CAPTURE(q.cluster);
    CAPTURE(q.gpus);
    for (int plans = 0; plans < 60;) {
      const auto plan = any_plan(a, random);
      if (!plan) continue;
      ++plans;
      CAPTURE(to_json_text(*plan));
      const Program program = lower(a.model, *plan, a.implementation);
      const auto demands =
          demands_of(program.steady_step, program, {a.model, *plan, a.implementation, a.cluster, a.costs});
      const double least = least_seconds(load_of(program.steady_step, demands));
      const double taken = simulate(program.steady_step, demands).duration;
      REQUIRE(least <= taken * (1 + 1e-9));
      closest = std::max(closest, least / taken);
    }
  }
  CHECK(closest > 0.97);  // and of use
}

TEST_CASE("no plan that fits is faster than the bound on its space") {
  std::mt19937_64 random(2);
  for (const Question& q : kQuestions) {
    const Asked a(q);
    CAPTURE(q.cluster);
    CAPTURE(q.gpus);
    // All of the memory, and so little that most plans must recompute.
    for (const double part : {1.0, 0.2}) {
      const Bytes limit(static_cast<std::int64_t>(part * static_cast<double>(default_memory_limit(a.cluster).count())));
      const Certificate c = certify(a.space, limit, a.implementation, a.cluster, a.costs);
      CAPTURE(c.kind);
      REQUIRE(c.any_fits);
      REQUIRE(c.seconds_per_sequence > 0);
      int fitted = 0;
      for (int draws = 0; draws < 150; ++draws) {
        const auto plan = any_plan(a, random);
        if (!plan) continue;
        const Prediction p = a.predicted(*plan, limit);
        if (p.verdict == Verdict::does_not_fit) continue;
        ++fitted;
        CAPTURE(to_json_text(*plan));
        REQUIRE(c.seconds_per_sequence <=
                p.step_time.count() / static_cast<double>(plan->sequences_per_rank()) * (1 + 1e-9));
      }
      CHECK(fitted > 10);
    }
  }
}
