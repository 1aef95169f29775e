// What the allocator does, record by record, and a step at other bandwidths: both are the prediction's, told in full.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "models/catalog.h"
#include "models/index.h"
#include "planner/job.h"
#include "planner/plan/naive_plan.h"
#include "simulator/engine/engine.h"
#include "simulator/predict.h"
#include "simulator/predict/allocation.h"
#include "simulator/predict/bandwidth_sweep.h"

using namespace fsdp;

namespace {

struct Case {
  ModelGraph model;
  ClusterSpec cluster;
  ShardingPlan plan;
  Costs costs;
  const Implementation& implementation;
  Programs programs;
  Prediction prediction;

  Case(Dialect dialect, const char* made_by, std::int64_t gpus = 8, const char* name = "tiny-llama")
      : model(load_model(name, 64)),
        cluster(load_cluster("dgx-h100", gpus)),
        plan(naive_plan(model, PlanOptions{.ranks = gpus, .seq_len = 64, .micro_batches = {1, 2}, .dialect = dialect})),
        costs(default_costs(cluster)),
        implementation(find_implementation(made_by, false, "")),
        programs(resolve(model, plan, implementation, cluster)),
        prediction(predict(programs, costs)) {}
  [[nodiscard]] CostContext context() const { return {model, plan, implementation, cluster, costs}; }
};

}  // namespace

TEST_CASE("the history's blocks are apart, and its peaks are those of the prediction") {
  using What = AllocatorRecord::What;
  for (const auto& [dialect, made_by] : {std::pair{Dialect::fsdp2, "torchtitan"}, std::pair{Dialect::fsdp2, "foundry"},
                                         std::pair{Dialect::fsdp1, "foundry"}, std::pair{Dialect::fsdp2, "native"},
                                         std::pair{Dialect::fsdp1, "native"}}) {
    CAPTURE(made_by);
    Case c(dialect, made_by);
    const AllocatorHistory history = allocation_history(c.programs.of(0), c.context(), c.prediction.timeline);
    std::map<std::int64_t, std::int64_t> held;  // address -> bytes: allocated, or released and not free yet
    std::int64_t reserved = 0, buffers = 0, most = 0;
    int apart = 0;
    for (const AllocatorRecord& r : history.records) {
      if (r.what == What::segment_taken) reserved += r.bytes;
      if (r.what == What::segment_given_back) reserved -= r.bytes;
      if (r.what == What::allocated) {
        const auto next = held.lower_bound(r.address);
        const bool free_before = next == held.begin() || std::prev(next)->first + std::prev(next)->second <= r.address;
        apart += free_before && (next == held.end() || r.address + r.bytes <= next->first) ? 0 : 1;
        held[r.address] = r.bytes;
        if (r.buffer >= 0) most = std::max(most, buffers += r.bytes);
      }
      if (r.what == What::released && r.buffer >= 0) buffers -= r.bytes;
      if (r.what == What::freed) held.erase(r.address);
    }
    CHECK(apart == 0);
    CHECK(most == c.prediction.peak_allocated.count());
    CHECK(reserved == c.prediction.peak_reserved_estimate.count());
    std::map<std::int64_t, std::int64_t> at_the_end;
    for (const BlockView& b : history.blocks)
      if (b.state == BlockState::allocated || b.state == BlockState::waiting) at_the_end[b.address] = b.requested;
    CHECK(at_the_end == held);
  }
}

TEST_CASE("a step at other bandwidths: at its own the predicted one, with more hardly slower") {
  for (const std::int64_t gpus : {8, 16}) {
    Case c(Dialect::fsdp2, "torchtitan", gpus, "llama3-8b");
    const BandwidthSweep sweep = bandwidth_sweep(c.programs.of(0), c.context(), c.prediction.timeline);
    CHECK(sweep.between_nodes == (gpus > 8));
    REQUIRE(sweep.points.size() > 4);
    double before = 1e9;
    int own = 0;
    for (const BandwidthPoint& p : sweep.points) {
      CHECK(p.step.count() <= before * 1.03);  // exact only where streams share nothing
      before = p.step.count();
      if (p.factor != 1) continue;
      ++own;
      CHECK(p.step.count() == c.prediction.step_time.count());
      CHECK(p.exposed_communication.count() == c.prediction.exposed_communication.count());
    }
    CHECK(own == 1);
    CHECK(sweep.points.front().step.count() > sweep.points.back().step.count());
  }
  Case alone(Dialect::fsdp2, "torchtitan", 1);
  CHECK(bandwidth_sweep(alone.programs.of(0), alone.context(), alone.prediction.timeline).points.empty());
}
