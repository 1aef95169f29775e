// Runs of tiny models for tests: plans by a few words, tensors compared by relative 2-norm.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "executor/run.h"
#include "models/catalog.h"
#include "planner/job.h"
#include "planner/lower.h"
#include "planner/plan.h"
#include "planner/program/stream_frees.h"
#include "planner/tensor/families.h"
#include "planner/wrap.h"
#include "simulator/engine/memory.h"
#include "simulator/records/measurement.h"

namespace fsdp::testing {

struct PlanWords {
  std::int64_t shard = 1, replicate = 1;
  std::string wrap = "block", checkpointing = "none";
  Reshard reshard = Reshard::automatic;
  std::vector<std::int64_t> micro_batches = {1};
  std::int64_t seq_len = 7;
  DType compute = DType::f32, reduce = DType::f32, master = DType::f32;
  std::optional<double> clip_norm = std::nullopt;
  GradSync grad_sync = GradSync::every;
  Dialect dialect = Dialect::fsdp2;
  int forward_prefetch = 0, backward_prefetch = 1;
  OptimizerKind optimizer = OptimizerKind::adamw;
  double momentum = 0;
  std::uint64_t seed = 1234;
  std::int64_t tensor = 1;
};

inline ShardingPlan make_plan(const ModelGraph& model, const PlanWords& w) {
  ShardingPlan p;
  p.dialect = w.dialect;
  p.model_name = model.name;
  p.model_digest = model.digest();
  p.wrap = w.wrap;
  p.mesh = {{"replicate", w.replicate}, {"shard", w.shard}};
  set_tensor(p, model, w.tensor);
  p.units = wrap(model, w.wrap, "test");
  for (Unit& u : p.units) u.reshard_after_forward = w.reshard;
  p.checkpointed = checkpointed_modules(model, w.checkpointing, "test");
  p.micro_batches = w.micro_batches;
  p.seq_len = w.seq_len;
  p.grad_sync = w.grad_sync;
  p.forward_prefetch = w.forward_prefetch;
  p.backward_prefetch = w.backward_prefetch;
  p.param_dtype = w.compute;
  p.reduce_dtype = w.reduce;
  p.master_dtype = w.master;
  p.clip_norm = w.clip_norm;
  p.optimizer.kind = w.optimizer;
  p.optimizer.momentum = w.momentum;
  p.optimizer.lr = 3e-3;
  p.seed = w.seed;
  return p;
}

// Five steps unless said otherwise: the first one and four more.
inline RunOptions five_steps(bool keep = true) {
  RunOptions o;
  o.warmup_steps = 1;
  o.steps = 4;
  o.keep_parameters = keep;
  return o;
}

// A run of a plan that is checked, resolved and lowered for this run alone.
inline RunResult run(const ModelGraph& model, const ShardingPlan& plan, const ClusterSpec& cluster, Backend& backend,
                     const RunOptions& options = {}) {
  check(plan, model);
  Programs programs(resolve(model, plan, backend.implementation(), cluster));
  return fsdp::run(programs, backend, options);
}

inline RunResult execute(const ModelGraph& model, const ShardingPlan& plan, const RunOptions& options) {
  const auto backend = make_host_backend({plan.replicate(), plan.shard(), plan.tensor()}, {30});
  return run(model, plan, load_cluster("host", plan.ranks()), *backend, options);
}

inline double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

// ||a - b|| / max(||b||, floor). The floor stands for tensors that are zero by structure (key biases): the layer's
// scale.
inline double distance(const std::vector<double>& a, const std::vector<double>& b, double floor = 0) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  const double scale = std::max(norm(b), floor);
  return scale == 0 ? std::sqrt(sum) : std::sqrt(sum) / scale;
}

inline const std::vector<double>& named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  REQUIRE(found != tensors.end());
  return found->values;
}

// What a rank's instruments saw of memory against its own program: equal, or, where blocks wait for streams, between
// what is allocated and what may still be held.
inline void check_between(const MemoryTimeline& low, const MemoryTimeline& m, const MemoryTimeline& high) {
  REQUIRE(m.points.size() == low.points.size());
  REQUIRE(m.points.size() == high.points.size());
  CHECK(m.start == low.start);
  CHECK(m.start == high.start);
  for (std::size_t i = 0; i < m.points.size(); ++i) {
    CAPTURE(i);
    CHECK(low.points[i].at <= m.points[i].at);
    CHECK(m.points[i].at <= high.points[i].at);
    CHECK(low.points[i].after <= m.points[i].after);
    CHECK(m.points[i].after <= high.points[i].after);
  }
}

inline void check_memory(const RankMeasurement& r, const fsdp::Program& program) {
  const ProgramMemory least = replay_memory(program);
  if (frees_at_stream_time(program)) {
    const HeldMemory most = replay_latest(program);
    check_between(least.init, r.init, most.init);
    check_between(least.first_step, r.first_step, most.first_step);
    check_between(least.steady_step, r.steady_step, most.steady_step);
    CHECK(r.peak_allocated_bytes >= least.peak);
    CHECK(r.peak_allocated_bytes <= most.peak());
    return;
  }
  CHECK(r.init == least.init);
  CHECK(r.first_step == least.first_step);
  CHECK(r.steady_step == least.steady_step);
  CHECK(r.peak_allocated_bytes == least.peak);
}

}  // namespace fsdp::testing
