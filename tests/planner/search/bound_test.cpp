// The certificate's laws: no plan's simulated step is shorter than the bound on that very plan, and none that fits is
// faster than the bound on its space.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <utility>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/bound/load.h"
#include "planner/bound/space_bound.h"
#include "planner/job.h"
#include "planner/lower.h"
#include "planner/search/plan_choices.h"
#include "planner/tensor/split.h"
#include "simulator/engine/engine.h"
#include "simulator/predict.h"
#include "tests/support/small_models.h"

using namespace fsdp;

namespace {

// Large enough for a GPU to be busy, small enough to simulate a thousand times.
ModelGraph dense(int hidden) {
  return small_llama({.layers = 6, .vocab = 4096, .hidden = hidden, .inner = 3 * hidden, .heads = 16, .kv_heads = 8});
}
ModelGraph tied() {
  return small_llama(
      {.layers = 6, .vocab = 4096, .hidden = 1024, .inner = 3072, .heads = 16, .kv_heads = 8, .tied = true});
}
ModelGraph frozen_embedding() {
  const std::vector<std::string> names = {"model.embed_tokens"};
  return freeze(dense(1024), names, "test");
}
ModelGraph experts() {
  return model_from_config(
      R"({"model_type": "mixtral", "capacity_factor": 1.0, "hidden_act": "silu", "hidden_size": 1024,
          "intermediate_size": 2048, "max_position_embeddings": 4096, "num_attention_heads": 16,
          "num_experts_per_tok": 2, "num_hidden_layers": 4, "num_key_value_heads": 8, "num_local_experts": 8,
          "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 4096})",
      "experts");
}

struct Question {
  const char* cluster;
  std::int64_t gpus, seq_len;
  ModelGraph (*model)();
  const char* implementation;
  bool compiled = false;
  std::optional<std::int64_t> global_batch = {};
  DType param = DType::bf16, reduce = DType::f32;
  std::int64_t tensor = 1;
};

// Intra-node and across nodes, resident matmuls (H100) and not (A100), eager and compiled, with micro-batches; tied,
// frozen and learned positions, experts; gradients that are reduced in a narrower type; tensor parallelism.
const Question kQuestions[] = {
    {"dgx-h100", 8, 4096, [] { return dense(2048); }, "torchtitan"},
    {"dgx-h100", 32, 4096, [] { return dense(2048); }, "torchtitan", true},
    {"dgx-a100-40", 16, 2048, tied, "torchtitan"},
    {"p4d", 32, 4096, [] { return dense(1024); }, "hf", false, 256},
    {"p4d", 32, 256, [] { return dense(1024); }, "torchtitan", true, 256},  // which collectives bound
    {"dgx-h100", 64, 2048, [] { return dense(4096); }, "native", false, 512},
    {"dgx-h100", 8, 1024, [] { return load_model("gpt2"); }, "hf", false, 64},
    {"dgx-a100-80", 16, 2048, experts, "hf"},
    {"dgx-h100", 16, 2048, frozen_embedding, "torchtitan", false, 128},
    {"dgx-a100-40", 8, 2048, tied, "torchtitan", false, 64, DType::f32, DType::bf16},
    {"dgx-h100", 32, 4096, [] { return dense(2048); }, "torchtitan", false, 64, DType::bf16, DType::f32, 2},
    {"dgx-h100", 16, 4096, [] { return dense(2048); }, "hf", false, {}, DType::bf16, DType::f32, 8},
};

struct Asked {
  ModelGraph model, local;  // local: what one rank computes
  ClusterSpec cluster;
  Costs costs;
  const Implementation& implementation;
  SearchOptions options;
  Space space;

  explicit Asked(const Question& q)
      : model(q.model()),
        cluster(load_cluster(q.cluster, q.gpus)),
        costs(default_costs(cluster)),
        implementation(find_implementation(q.implementation, q.compiled, "test")) {
    PlanChoices choices;
    choices.global_batch = q.global_batch;
    choices.param_dtype = q.param;
    choices.reduce_dtype = q.reduce;
    if (q.tensor > 1) choices.tensor = q.tensor;
    options = search_of(choices, model, {.ranks = q.gpus, .seq_len = q.seq_len});
    options.selective_op = implementation.keeps_selectively != nullptr;
    options.open = {true, true, true, true, true, true};
    space = space_of(model, cluster, options);
    local = q.tensor > 1 ? split_over_tensor(model, options.base) : model;
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

bool is_legal(const Asked& a, const ShardingPlan& plan) {
  try {
    check(plan, a.model);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// A legal plan of the space, of at most eight micro-batches of moderate size; nullopt: the draw was none.
std::optional<ShardingPlan> any_plan(const Asked& a, std::mt19937_64& random) {
  const Design d = any_design(a.space, random);
  if (d.batch.grad_accum > 8 || d.batch.micro_batch > 16) return std::nullopt;
  const ShardingPlan plan = plan_of(d, a.space, any_of(any_of(a.space.ladders, random), random));
  return is_legal(a, plan) ? std::optional(plan) : std::nullopt;
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
      const Program program = lower(a.local, *plan, a.implementation);
      const auto demands =
          demands_of(program.steady_step, program, {a.local, *plan, a.implementation, a.cluster, a.costs});
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

TEST_CASE("no plan is faster than the bound on the space that holds it alone, under a limit that it just meets") {
  std::mt19937_64 random(3);
  double closest = 0;
  for (const Question& q : kQuestions) {
    const Asked a(q);
    CAPTURE(q.cluster);
    CAPTURE(q.gpus);
    for (int plans = 0; plans < 40;) {
      Design d = any_design(a.space, random);
      d.kept = 0, d.kept_between = false, d.embedding_once = false;
      const std::string policy = any_of(any_of(a.space.ladders, random), random);
      const ShardingPlan plan = plan_of(d, a.space, policy);
      if (d.batch.grad_accum > 8 || d.batch.micro_batch > 16 || !is_legal(a, plan)) continue;
      ++plans;
      Space alone = a.space;
      alone.groupings = {a.space.groupings[d.grouping]};
      alone.reshards = {d.reshard};
      alone.batches = {d.batch};
      alone.replicas = {d.replicate};
      alone.chunks = {d.loss_chunks};
      alone.syncs = {d.grad_sync};
      alone.kept_free = alone.embedding_free = alone.second_communicator_free = false;
      alone.base.separate_reduce_scatter = d.separate_reduce_scatter;
      alone.ladders = {{policy}};
      CAPTURE(to_json_text(plan));
      const Prediction p = a.predicted(plan, Bytes(std::int64_t{1} << 50));
      const Certificate c = certify(alone, p.peak_total, a.implementation, a.cluster, a.costs);
      REQUIRE(c.any_fits);
      const double taken = p.step_time.count() / static_cast<double>(plan.sequences_per_rank());
      REQUIRE(c.seconds_per_sequence <= taken * (1 + 1e-9));
      closest = std::max(closest, c.seconds_per_sequence / taken);
    }
  }
  CHECK(closest > 0.97);
}

// Kernels and collectives as no model has them, all of which may run at once.
TEST_CASE("no step of any kernels and collectives is shorter than its bound") {
  std::mt19937_64 random(4);
  const auto uniform = [&](double from, double to) { return std::uniform_real_distribution<double>(from, to)(random); };
  double closest = 0;
  for (int steps = 0; steps < 4000; ++steps) {
    CAPTURE(steps);
    Step step;
    std::vector<Demand> demands;
    const auto add = [&](Stream stream, Communicator comm, const Demand& d) {
      Operation op;
      op.action = comm == Communicator::none ? Action::forward : Action::all_gather;
      op.stream = stream;
      op.comm = comm;
      step.ops.push_back(op);
      demands.push_back(d);
    };
    // Every fourth step: short collectives on one communicator, beside half of which a kernel finds its places.
    const bool narrow = steps % 4 == 0;
    const double resident = narrow                ? uniform(0.8, 0.98)
                            : uniform(0, 1) < 0.5 ? uniform(0.3, 1)
                                                  : 0,
                 each = uniform(0.1, 2), second_round = uniform(0.5, 1);
    for (auto kernels = random() % 20 + 1; kernels > 0; --kernels) {
      Demand d;
      d.alone = Seconds(each);
      d.use[static_cast<std::size_t>(Resource::compute)] = uniform(0, 1);
      d.use[static_cast<std::size_t>(Resource::memory)] = uniform(narrow ? 0.7 : 0, 1);
      d.resident = resident;
      d.second_round = second_round;
      add(Stream::compute, Communicator::none, d);
    }
    // Over shards, over shards beside them, and over replicas: up to three at once.
    const std::pair<Stream, Communicator> over[] = {{Stream::all_gather, Communicator::shard},
                                                    {Stream::reduce_scatter, Communicator::shard_reduce},
                                                    {Stream::all_reduce, Communicator::replicate}};
    const auto communicators = narrow ? 1 : random() % 3 + 1;
    for (auto collectives = random() % 12; collectives > 0; --collectives) {
      const auto& [stream, comm] = over[random() % communicators];
      Demand d;
      d.alone = Seconds(uniform(0.1, narrow ? 1.5 : 10));
      d.holds_compute = true;
      d.use[static_cast<std::size_t>(Resource::compute)] = uniform(0, narrow && random() % 2 == 0 ? 0.02 : 0.3);
      d.use[static_cast<std::size_t>(Resource::memory)] = uniform(0, narrow ? 0.9 : 0.5);
      add(stream, comm, d);
    }
    const double least = least_seconds(load_of(step, demands)), taken = simulate(step, demands).duration;
    REQUIRE(least <= taken * (1 + 1e-9));
    closest = std::max(closest, least / taken);
  }
  CHECK(closest > 0.999);
}
