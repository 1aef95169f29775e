// Twelve plans of three models on 2 and on 4 ranks, as tests/accuracy/host_accuracy.sh times them: what is executed,
// and what it allocates, is what was predicted, on every rank. Times are not tested.
#include <doctest/doctest.h>

#include "simulator/records/compare.h"
#include "tests/support/host_costs.h"
#include "tests/support/predict_support.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

ModelGraph gpt2() {
  return model_from_config(
      R"({"model_type": "gpt2", "vocab_size": 41, "n_positions": 16, "n_embd": 20, "n_layer": 2, "n_head": 4,
      "n_inner": 52, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})",
      "gpt2", 7);
}

struct TimedPlan {
  const char* name;
  char model;       // a: small Llama, b: a larger one with tied embeddings, c: GPT-2
  PlanWords words;  // of 2 ranks, unless HSDP
};

// `ranks` in a mesh of replicas x shards.
std::vector<TimedPlan> plans(std::int64_t ranks) {
  std::vector<TimedPlan> all = {
      {"block, reshard", 'a', {.reshard = Reshard::yes}},
      {"block, keep gathered", 'a', {.reshard = Reshard::no}},
      {"block:2, accumulation 3", 'a', {.wrap = "block:2", .reshard = Reshard::yes, .micro_batches = {1, 1, 1}}},
      {"root, keep gathered", 'b', {.wrap = "root", .reshard = Reshard::no, .micro_batches = {2}}},
      {"root, reshard, full checkpointing, accumulation 3",
       'b',
       {.wrap = "root", .checkpointing = "full", .reshard = Reshard::yes, .micro_batches = {1, 1, 1}}},
      {"block, full checkpointing", 'c', {.checkpointing = "full", .reshard = Reshard::yes, .micro_batches = {2}}},
      {"titan, every second block checkpointed",
       'a',
       {.wrap = "titan", .checkpointing = "every-2", .micro_batches = {2}}},
      {"no gradient sync before the last of 3",
       'c',
       {.reshard = Reshard::yes, .micro_batches = {1, 2, 1}, .grad_sync = GradSync::last}},
      {"prefetch 2 forward, 2 backward", 'b', {.reshard = Reshard::yes, .forward_prefetch = 2, .backward_prefetch = 2}},
      {"no prefetch, clipping", 'a', {.reshard = Reshard::yes, .clip_norm = 0.5, .backward_prefetch = 0}},
      {"HSDP (2 x 1, 2 x 2), accumulation 2",
       'a',
       {.replicate = 2, .reshard = Reshard::yes, .micro_batches = {1, 1}, .grad_sync = GradSync::reduce_scatter_only}},
      {"ddp, uneven micro-batches", 'a', {.micro_batches = {2, 1}, .dialect = Dialect::ddp}},
  };
  for (TimedPlan& p : all) {
    const bool ddp = p.words.dialect == Dialect::ddp;
    if (ddp) p.words.replicate = ranks;
    else p.words.shard = ranks / p.words.replicate;
  }
  return all;
}

}  // namespace

TEST_CASE("12 plans on 2 and 4 ranks: order and memory equal the prediction on every rank") {
  const ModelGraph models[] = {
      small_llama(), small_llama({.layers = 5, .vocab = 64, .hidden = 32, .inner = 48, .tied = true}), gpt2()};
  for (const std::int64_t ranks : {2, 4}) {
    const ClusterSpec cluster = load_cluster("host", ranks);
    const Costs costs = host_costs_by_hand(ranks);
    const std::vector<TimedPlan> all = plans(ranks);
    CHECK(all.size() == 12);
    for (const TimedPlan& p : all) {
      CAPTURE(ranks);
      CAPTURE(p.name);
      const ModelGraph& model = models[p.model - 'a'];
      const ShardingPlan plan = make_plan(model, p.words);
      REQUIRE(plan.ranks() == ranks);
      const Prediction prediction = predict({model, plan, native_implementation(), cluster, costs});
      const Measurement measurement = execute(model, plan, five_steps(false)).measurement;
      REQUIRE(measurement.ranks.size() == static_cast<std::size_t>(ranks));
      // By way of the disk, as `validate` does it.
      const ValidationReport report =
          compare(parse_prediction(to_json_text(prediction), "p"), parse_measurement(to_json_text(measurement), "m"));
      CHECK(report.order_equal);
      CHECK(report.memory_equal);
      CHECK(report.differences.empty());
      CHECK(report.peak.error() == 0);
      CHECK(report.not_compared.empty());
      CHECK_FALSE(report.where.empty());
      CHECK(report.by_rank.size() == 2 * static_cast<std::size_t>(ranks));
      // A unit's kernels and collectives are all of the step's, however they are sorted.
      for (const RankMeasurement& r : measurement.ranks) {
        double by_unit = 0, by_action = 0;
        for (const UnitTime& u : r.by_unit) by_unit += u.compute_seconds + u.communication_seconds;
        for (const ActionTime& a : r.by_action) by_action += a.seconds;
        CHECK(by_unit == doctest::Approx(by_action).epsilon(1e-9));
      }
    }
  }
}

TEST_CASE("one operation swapped, or one byte more, on one of four ranks, is a difference") {
  const ModelGraph model = small_llama();
  const ShardingPlan plan = make_plan(model, {.shard = 2, .replicate = 2, .reshard = Reshard::yes});
  const Prediction prediction =
      predict({model, plan, native_implementation(), load_cluster("host", 4), host_costs_by_hand(4)});
  const Measurement measurement = execute(model, plan, five_steps(false)).measurement;
  REQUIRE(compare(prediction, measurement).order_equal);
  Measurement swapped = measurement;
  std::swap(swapped.ranks[3].order[10], swapped.ranks[3].order[11]);
  CHECK_FALSE(compare(prediction, swapped).order_equal);
  Measurement more = measurement;
  more.ranks[2].steady_step.points[7].at += 1;
  CHECK_FALSE(compare(prediction, more).memory_equal);
}
