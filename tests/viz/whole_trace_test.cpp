// Traces of whole steps, predicted and measured on every rank: slices nest, arrows are the step's waits, counters go on
// in time and sum up, and nothing begins before the host issued it.
#include <doctest/doctest.h>

#include "models/catalog.h"
#include "simulator/predict.h"
#include "tests/support/host_costs.h"
#include "tests/support/run_support.h"
#include "tests/viz/trace_checker.h"
#include "viz/trace.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Predicted {
  ModelGraph model;
  ClusterSpec cluster;
  ShardingPlan plan;
  Costs costs;
  Programs programs;
  Prediction prediction;
  Demands demands;

  Predicted(const PlanWords& words, const char* implementation, const std::string& on)
      : model(load_model("tiny-llama", words.seq_len)),
        cluster(load_cluster(on, words.shard * words.replicate)),
        plan(make_plan(model, words)),
        costs(cluster.host ? host_costs_by_hand(plan.ranks()) : default_costs(cluster)),
        programs(resolve(model, plan, find_implementation(implementation, false, ""), cluster)),
        prediction(predict(programs, costs)),
        demands(demands_of(programs.of(0).steady_step, programs.of(0),
                           {model, plan, find_implementation(implementation, false, ""), cluster, costs})) {}
  std::string trace(const Measurement* measured = nullptr) {
    return trace_json({programs.of(0), plan, model, &prediction, demands, measured});
  }
};

std::string listed(const std::vector<std::string>& problems) {
  std::string all;
  for (const std::string& p : problems) all += p + "\n";
  return all;
}

}  // namespace

TEST_CASE("a predicted step's trace holds for plans of every dialect") {
  PlanWords sharded{.shard = 8, .seq_len = 64};
  PlanWords hybrid{.shard = 4, .replicate = 2, .checkpointing = "full", .micro_batches = {1, 2}, .seq_len = 64};
  hybrid.grad_sync = GradSync::last;
  hybrid.clip_norm = 1.0;
  hybrid.forward_prefetch = 2;
  PlanWords older{.shard = 8, .micro_batches = {1, 1, 1}, .seq_len = 64, .dialect = Dialect::fsdp1};
  PlanWords replicated{.shard = 1, .replicate = 8, .seq_len = 64, .dialect = Dialect::ddp};
  for (const PlanWords& words : {sharded, hybrid, older, replicated}) {
    CAPTURE(static_cast<int>(words.dialect));
    CAPTURE(words.replicate);
    Predicted p(words, "torchtitan", "dgx-h100");
    TraceChecker trace(p.trace());
    const Step& step = p.programs.of(0).steady_step;
    trace.check_nesting();
    trace.check_arrows(step);
    trace.check_counters(true);
    trace.check_operations("predicted", step, p.prediction.timeline);
    CHECK(listed(trace.problems) == "");
    CHECK(trace.arrows > 5);
    CHECK(trace.moments_of_memory > 10);
    const std::set<std::string> tracks = trace.tracks("predicted");
    CHECK(tracks.contains("host"));
    CHECK(tracks.contains("critical path"));
    CHECK(tracks.contains(words.dialect == Dialect::ddp ? "replicate communicator" : "shard communicator"));
  }
}

TEST_CASE("units are slices around their operations, inside of forward and backward") {
  Predicted p({.shard = 8, .micro_batches = {1, 1}, .seq_len = 64}, "torchtitan", "dgx-h100");
  TraceChecker trace(p.trace());
  const std::vector<std::string> names = trace.names("predicted", "compute stream");
  for (const char* slice : {"forward, micro-batch 1", "backward, micro-batch 2", "optimizer"})
    CHECK(std::count(names.begin(), names.end(), slice) == 1);
  for (std::size_t u = 0; u + 1 < p.plan.units.size(); ++u) {
    const std::string unit = "unit " + std::to_string(u) + " (" + p.plan.units[u].modules.front() + ")";
    CHECK_MESSAGE(std::count(names.begin(), names.end(), unit) >= 4, unit);  // twice forward, twice backward
  }
}

TEST_CASE("a run's trace has what was predicted and what every rank measured") {
  const PlanWords words{.shard = 2, .micro_batches = {1, 2}, .seq_len = 8};
  Predicted p(words, "native", "host");
  const Measurement measured = execute(p.model, p.plan, five_steps(false)).measurement;
  REQUIRE(measured.ranks.size() == 2);
  TraceChecker trace(p.trace(&measured));
  const Step& step = p.programs.of(0).steady_step;
  trace.check_nesting();
  trace.check_arrows(step);
  trace.check_counters(true);
  trace.check_operations("predicted", step, p.prediction.timeline);
  trace.check_operations("measured rank 0", step, measured.ranks[0].timeline);
  trace.check_operations("measured rank 1", step, measured.ranks[1].timeline);
  CHECK(listed(trace.problems) == "");
}

TEST_CASE("the checker finds what is wrong") {
  Predicted p({.shard = 8, .seq_len = 64}, "torchtitan", "dgx-h100");
  const Step& step = p.programs.of(0).steady_step;
  const auto problems = [&](const auto& change) {
    TraceJson trace = TraceJson::parse(p.trace());
    TraceJson& events = trace["traceEvents"];
    change(events);
    TraceChecker checker(trace.dump());
    checker.check_nesting();
    checker.check_arrows(step);
    checker.check_counters(true);
    checker.check_operations("predicted", step, p.prediction.timeline);
    return !checker.problems.empty();
  };
  const auto first = [](TraceJson& events, const char* phase, const char* category) -> TraceJson& {
    return *std::find_if(events.begin(), events.end(), [&](const TraceJson& e) {
      return e["ph"] == phase && (std::string(category).empty() || e["cat"] == category);
    });
  };
  CHECK_FALSE(problems([](TraceJson&) {}));
  CHECK(problems([&](TraceJson& e) { first(e, "X", "all_gather")["dur"] = 1e9; }));
  CHECK(problems([&](TraceJson& e) { first(e, "X", "unit")["dur"] = 1e9; }));
  CHECK(problems([&](TraceJson& e) {
    for (TraceJson& event : e)
      if (event["cat"] == "host" && !step.ops[event["args"]["op"].get<std::size_t>()].host_only) event["dur"] = 1e9;
  }));
  CHECK(problems([&](TraceJson& e) { first(e, "s", "")["id"] = 123456789; }));
  CHECK(problems([&](TraceJson& e) { first(e, "f", "")["ts"] = 1e9; }));
  CHECK(problems([&](TraceJson& e) { first(e, "C", "")["args"]["bytes"] = 1; }));
  CHECK(problems([&](TraceJson& e) { first(e, "C", "")["ts"] = 1e9; }));
}
