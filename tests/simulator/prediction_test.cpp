// Predictions and their records.
#include "simulator/records/prediction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "models/catalog.h"
#include "models/input/error.h"
#include "planner/breakdown.h"
#include "planner/costs/kernels.h"
#include "planner/lower.h"
#include "planner/plan/naive_plan.h"
#include "planner/verdict.h"
#include "simulator/allocator/replay.h"
#include "simulator/analysis/breakdown.h"
#include "simulator/analysis/critical_path.h"
#include "simulator/engine/engine.h"
#include "simulator/engine/memory.h"
#include "simulator/predict.h"
#include "simulator/records/compare.h"
#include "simulator/records/measurement.h"
#include "tests/support/predict_support.h"
#include "tests/support/relative.h"
#include "tests/support/toy_model.h"

using namespace fsdp;

namespace {

ClusterSpec gpus(std::int64_t n) {
  ClusterSpec c;
  c.name = "test";
  c.gpu.name = "test-gpu";
  c.gpu.fp32 = FlopsPerSecond(10e12);
  c.gpu.bf16 = FlopsPerSecond(100e12);
  c.gpu.memory_bandwidth = BytesPerSecond(1e12);
  c.gpu.usable_memory = Bytes(1 << 20);
  c.gpu.sms = 100;
  c.gpus = n;
  c.intra_bus = BytesPerSecond(1e11);
  c.inter_bus = BytesPerSecond(1e10);
  c.intra_latency = c.inter_latency = c.collective_base_latency = Seconds(1e-6);
  c.collective_sms = 10;
  c.fixed_memory = Bytes(1000);
  return c;
}

struct Setup {
  explicit Setup(std::int64_t shard, std::int64_t replicate = 1)
      : plan(toy::plan(model, shard, replicate)), cluster(gpus(shard * replicate)) {}
  ModelGraph model = toy::model({.blocks = 3});
  ShardingPlan plan;
  const Implementation& impl = find_implementation("native", false, "test");
  ClusterSpec cluster;
  Costs costs = default_costs(cluster);
  [[nodiscard]] CostContext context() const { return {model, plan, impl, cluster, costs}; }
  [[nodiscard]] Prediction predicted(const PredictOptions& o = {}) const { return testing::predict(context(), o); }
};

double sum(const Breakdown& b) {
  return (b.compute + b.recompute + b.exposed_all_gather + b.exposed_reduce_scatter + b.exposed_all_reduce + b.copies +
          b.optimizer + b.idle)
      .count();
}

// A step by hand: operations with given spans.
struct HandMade {
  Step step;
  Timeline timeline;
  void add(Action action, Stream stream, double start, double end, std::vector<std::int32_t> waits = {},
           Communicator comm = Communicator::none) {
    Operation op;
    op.action = action;
    op.stream = stream;
    op.comm = comm;
    op.waits = {static_cast<std::uint32_t>(step.waits.size()), static_cast<std::uint32_t>(waits.size())};
    step.waits.insert(step.waits.end(), waits.begin(), waits.end());
    step.ops.push_back(op);
    timeline.spans.push_back({start, end});
    timeline.duration = std::max(timeline.duration, end);
  }
};

}  // namespace

TEST_CASE("a step's time is broken down as worked out by hand") {
  HandMade h;
  //       0    1    2    3    4    5    6    7    8    9    10
  // D     copy .    [forward  ][recompute].    .    [opt]
  // G          [all-gather ]        (hidden under compute: not charged)
  // R                                    [reduce-scatter 5 - 6.5]
  // A                                         [all-reduce 6 - 7]
  // C     [copy 0.5 - 1.5]
  h.add(Action::gather_copy_out, Stream::compute, 0, 1);
  h.add(Action::gather_copy_in, Stream::copy_in, 0.5, 1.5);
  h.add(Action::all_gather, Stream::all_gather, 1.5, 3);
  h.add(Action::forward, Stream::compute, 2, 4);
  h.add(Action::recompute, Stream::compute, 4, 5);
  h.add(Action::reduce_scatter, Stream::reduce_scatter, 5, 6.5);
  h.add(Action::all_reduce, Stream::all_reduce, 6, 7);
  h.add(Action::optimizer, Stream::compute, 8, 10);
  const Breakdown b = where_time_goes(h.step, h.timeline);
  CHECK(b.compute.count() == relative(2));
  CHECK(b.recompute.count() == relative(1));
  CHECK(b.optimizer.count() == relative(2));
  CHECK(b.copies.count() == relative(1 + 0.5));              // copy-out, and the copy-in alone in 1 - 1.5
  CHECK(b.exposed_all_gather.count() == relative(0.5));      // 1.5 - 2
  CHECK(b.exposed_reduce_scatter.count() == relative(1.5));  // wins over the all-reduce in 6 - 6.5
  CHECK(b.exposed_all_reduce.count() == relative(0.5));
  CHECK(b.idle.count() == relative(1));  // 7 - 8
  CHECK(sum(b) == relative(10));
}

TEST_CASE("where time goes: what the host does itself is the optimizer's, where nothing else runs") {
  HandMade h;
  h.add(Action::backward, Stream::compute, 0, 4);
  h.add(Action::gradient_to_host, Stream::reduce_scatter, 4, 5);
  h.add(Action::host_wait, Stream::compute, 5, 5, {1});
  h.add(Action::optimizer, Stream::compute, 5, 8);
  h.add(Action::forward, Stream::compute, 7, 9);
  h.step.ops[2].host_only = h.step.ops[3].host_only = true;
  const Breakdown b = where_time_goes(h.step, h.timeline);
  CHECK(b.compute.count() == relative(4 + 2));
  CHECK(b.copies.count() == relative(1));
  CHECK(b.optimizer.count() == relative(2));  // 5 - 7; then compute hides it
  CHECK(b.idle.count() == 0);
  CHECK(sum(b) == relative(9));
}

TEST_CASE("critical path: the host waited before it issued") {
  // fsdp1's limiter: the third all-gather is not issued before the first forward has ended. A wait for the step before
  // is no part of it.
  HandMade h;
  h.add(Action::host_wait, Stream::compute, 0, 0, {-1 - 4});                     // 0
  h.add(Action::all_gather, Stream::all_gather, 0, 1, {}, Communicator::shard);  // 1
  h.add(Action::forward, Stream::compute, 1, 5, {1});                            // 2
  h.add(Action::host_wait, Stream::compute, 5, 5, {2});                          // 3
  h.add(Action::all_gather, Stream::all_gather, 5, 7, {}, Communicator::shard);  // 4
  h.add(Action::cast_shard, Stream::copy_in, 7, 7.5, {4});                       // 5
  h.add(Action::optimizer, Stream::compute, 7.5, 8, {5});                        // 6
  h.step.ops[0].host_only = h.step.ops[3].host_only = true;
  CHECK(critical_chain(h.step, h.timeline) == std::vector<std::int32_t>{1, 2, 4, 5, 6});
}

TEST_CASE("the critical path is the one worked out by hand") {
  HandMade h;
  h.add(Action::all_gather, Stream::all_gather, 0, 3, {}, Communicator::shard);           // 0
  h.add(Action::load_batch, Stream::compute, 0, 1);                                       // 1
  h.add(Action::gather_copy_out, Stream::compute, 3, 4, {0});                             // 2 waits for 0
  h.add(Action::reduce_scatter, Stream::reduce_scatter, 4, 9, {2}, Communicator::shard);  // 3
  h.add(Action::all_gather, Stream::all_gather, 9, 11, {}, Communicator::shard);  // 4 behind 3 on the communicator
  h.add(Action::optimizer, Stream::compute, 11.5, 12, {4});                       // 5, half a second late
  CHECK(critical_chain(h.step, h.timeline) == std::vector<std::int32_t>{0, 2, 3, 4, 5});
  const ModelGraph model = toy::model();
  const std::vector<std::string> words = critical_path(h.step, h.timeline, model);
  REQUIRE(words.size() == 5);
  CHECK((words[0].starts_with("all_gather: 5") || words[0].starts_with("reduce_scatter: 5")));
  CHECK(std::any_of(words.begin(), words.end(), [](const std::string& w) { return w.starts_with("waiting: 500 ms"); }));
  CHECK(critical_chain({}, {}).empty());
}

TEST_CASE("a prediction's parts fit together") {
  for (const auto& [shard, replicate] : {std::pair(1, 1), std::pair(2, 1), std::pair(4, 2)}) {
    CAPTURE(shard);
    Setup s(shard, replicate);
    s.plan.micro_batches = {1, 2};
    s.plan.clip_norm = 1.0;
    const Prediction p = s.predicted();
    CHECK(p.step_time.count() > 0);
    CHECK(sum(p.where) == relative(p.step_time.count()).epsilon(1e-9));
    CHECK(p.ranks == shard * replicate);
    CHECK(p.tokens_per_step == 3 * 5 * p.ranks);
    CHECK(p.tokens_per_s == relative(static_cast<double>(p.tokens_per_step) / p.step_time.count()));
    CHECK(std::accumulate(p.peak_made_of.begin(), p.peak_made_of.end(), std::int64_t{0}) == p.peak_allocated.count());
    CHECK(p.timeline.duration == p.step_time.count());
    double seconds = 0;
    std::int64_t count = 0;
    for (const ActionTime& a : p.by_action) {
      seconds += a.seconds;
      count += a.count;
    }
    CHECK(static_cast<std::size_t>(count) == p.order.size());
    // In host order each operation of a stream once, within a stream as listed.
    CHECK(p.issued.size() == p.memory.steady_step.points.size());
    std::vector<std::int32_t> last(kStreams, -1);
    std::size_t issued = 0;
    for (const std::int32_t i : p.issued) {
      if (i < 0) continue;
      std::int32_t& before = last[static_cast<std::size_t>(p.order[static_cast<std::size_t>(i)].stream)];
      CHECK(i > before);
      before = i;
      ++issued;
    }
    CHECK(issued == p.order.size());
    CHECK(p.step_time.count() <= seconds + 1e-3);
    CHECK(p.peak_at.find("step") != std::string::npos);
    if (shard == 1) CHECK(p.exposed_communication.count() < 1e-4);
  }
}

TEST_CASE("utilisation equals its closed form, with and without recomputation") {
  Setup s(1);
  const Prediction p = s.predicted();
  // 2 sequences of 5 tokens on one rank; fp32 without TF32 units: peak 10 TFLOP/s.
  const double flops = model_flops_per_token(s.model, 5) * 10;
  CHECK(p.mfu == relative(flops / p.step_time.count() / 10e12));
  CHECK(p.hfu == p.mfu);
  // Recomputing every block: its first linear again, 2 * 10 tokens * 6 * 10 flops, and the gelu between (what the
  // second linear and the add make, no backward reads).
  Setup c(1);
  c.plan.checkpointed = {"layers.0", "layers.1", "layers.2"};
  const Prediction q = c.predicted();
  const double again = (q.hfu - q.mfu) * q.step_time.count() * 10e12;
  const double gelu = forward_flops(c.model.ops[2], {2, 5, 4});
  REQUIRE(c.model.ops[2].kind == OpKind::gelu);
  CHECK(again == relative(3 * (2.0 * 10 * 6 * 10 + gelu)));
  CHECK(q.where.recompute.count() > 0);
}

TEST_CASE("blocks that wait for streams: least and most are predicted, and room for the most is reserved") {
  Setup s(2);
  s.plan.dialect = Dialect::fsdp1;
  Program program = lower(s.model, s.plan, s.impl);
  assign_arena(program);
  const Prediction p = s.predicted();
  REQUIRE(p.memory.most);
  CHECK(p.peak_allocated < p.peak_active);
  CHECK(p.peak_active.count() == p.memory.most->peak());
  CHECK(p.peak_reserved_estimate.count() == program.arena_bytes);
  const Prediction read = parse_prediction(to_json_text(p), "p.json");
  CHECK(read.memory.most == p.memory.most);
  s.plan.dialect = Dialect::fsdp2;
  CHECK_FALSE(parse_prediction(to_json_text(s.predicted()), "p.json").memory.most);
}

TEST_CASE("a static arena: reserved is planned, and there is nothing between fits and does not fit") {
  Setup s(2);
  Program program = lower(s.model, s.plan, s.impl);
  assign_arena(program);
  const Prediction p = s.predicted();
  CHECK(p.peak_reserved_estimate.count() == program.arena_bytes);
  CHECK(p.peak_active == p.peak_allocated);
  CHECK(p.peak_total.count() == program.arena_bytes + 1000);
  CHECK(p.memory_limit.count() == static_cast<std::int64_t>(0.95 * (1 << 20)));
  CHECK(memory_limit(s.cluster, {.headroom = 0.25, .reserve = Bytes(1000)}).count() == (3 << 18) - 1000);
  CHECK(memory_limit(s.cluster, {.headroom = 0, .reserve = Bytes(1 << 20)}).count() == 0);
  const auto verdict = [&](std::int64_t limit) {
    PredictOptions o;
    o.memory_limit = Bytes(limit);
    return s.predicted(o).verdict;
  };
  const auto out_of_memory = [&](Bytes reserve) {
    PredictOptions o;
    o.reserve = reserve;
    return s.predicted(o).doubt.value().out_of_memory;
  };
  const Bytes spare = s.cluster.gpu.usable_memory - p.peak_allocated - p.fixed;
  CHECK(out_of_memory(spare) > out_of_memory({}) + 0.1);  // what others take is not there
  CHECK(verdict(program.arena_bytes + 1000) == Verdict::fits);
  CHECK(verdict(program.arena_bytes + 999) == Verdict::does_not_fit);
  // The host's ranks hold an arena whatever is imitated on them.
  s.cluster.host = true;
  s.costs = {};
  s.costs.platform = "host";
  s.costs.kernels.resize(2 * kOpKinds, {Seconds(1e-6), FlopsPerSecond(0), BytesPerSecond(1e9)});
  for (auto& curve : s.costs.matmul_curve) curve = {{1e3, 1e-6}, {1e9, 1e-1}};
  s.costs.copy = s.costs.cast = s.costs.optimizer =
      s.costs.norm = {Seconds(1e-6), FlopsPerSecond(0), BytesPerSecond(2e9)};
  s.costs.all_gather = s.costs.reduce_scatter = s.costs.all_reduce = {{8, 1e-5}, {1e6, 1e-3}};
  const Implementation& hf = find_implementation("hf", false, "test");
  Program imitated = lower(s.model, s.plan, hf);
  const Prediction on_host = testing::predict({s.model, s.plan, hf, s.cluster, s.costs});
  assign_arena(imitated);
  CHECK(on_host.peak_reserved_estimate.count() == imitated.arena_bytes);

  // On CPU ranks offloaded buffers are in the memory that is limited; on GPUs they are not.
  s.plan.offload = true;
  const auto offloaded = [&](std::int64_t limit) {
    PredictOptions o;
    o.memory_limit = Bytes(limit);
    return s.predicted(o);
  };
  const Prediction room = offloaded(1 << 30);
  CHECK(room.memory.host_peak > 0);
  CHECK(room.peak_total == room.peak_reserved_estimate + room.fixed + Bytes(room.memory.host_peak));
  CHECK(offloaded(room.peak_total.count()).verdict == Verdict::fits);
  CHECK(offloaded(room.peak_total.count() - 1).verdict == Verdict::does_not_fit);
}

TEST_CASE("on GPUs offloaded buffers are in the machine's memory, not in the GPU's") {
  Setup s(2);
  s.plan.offload = true;
  const Prediction p = s.predicted();
  CHECK(p.memory.host_peak > 0);
  CHECK(p.peak_total == p.peak_reserved_estimate + p.fixed);
}

TEST_CASE("the caching allocator: fits, tight with retries or expandable segments, does not fit") {
  const ModelGraph model = load_model("llama3-8b", 8192);
  PlanOptions options;
  options.ranks = 8;
  options.seq_len = 8192;
  const ShardingPlan plan = naive_plan(model, options);
  const ClusterSpec cluster = load_cluster("dgx-h100", 8);
  const Costs costs = default_costs(cluster);
  std::int64_t reserved_of[2] = {0, 0};
  for (const char* name : {"hf", "torchtitan"}) {
    CAPTURE(name);
    const Implementation& impl = find_implementation(name, false, "test");
    const bool expandable = impl.memory == MemorySource::caching_expandable;
    CHECK(expandable == (impl.name == "torchtitan"));
    const Program program = lower(model, plan, impl);
    const std::vector<FixedAllocation> cublas(2, {33554432, Stream::compute});  // 8 pieces of 4 MiB on an H100
    ReplayOptions replay;
    replay.fixed = cublas;
    replay.settings.expandable_segments = expandable;
    const AllocatorPrediction free = replay_allocator(program, replay);
    const std::int64_t fixed = cluster.fixed_memory.count();
    const auto with_limit = [&](std::int64_t device) {
      return testing::predict({model, plan, impl, cluster, costs},
                              {.memory_limit = Bytes(device + fixed), .keep_timeline = false});
    };
    const Prediction fits = with_limit(free.peak_reserved), less = with_limit(free.peak_reserved - 1),
                     none = with_limit(free.peak_allocated - 1);
    CHECK(fits.verdict == Verdict::fits);
    CHECK(fits.alloc_retries == 0);
    CHECK(fits.peak_reserved_estimate.count() == free.peak_reserved);
    CHECK(fits.peak_active.count() == free.peak_active);
    CHECK(fits.peak_total.count() == free.peak_reserved + fixed);
    CHECK(less.verdict == Verdict::tight);
    CHECK(less.peak_total == fits.peak_total);  // what it would reserve, if it could
    CHECK(none.verdict == Verdict::does_not_fit);
    CHECK(none.alloc_retries == 0);
    reserved_of[expandable] = free.peak_reserved;
    // The retries are those of a replay under the limit.
    replay.settings.capacity = free.peak_reserved - 1;
    CHECK(less.alloc_retries == replay_allocator(program, replay).retries_per_step);
    CHECK_FALSE(fits.retry_stall);
    CHECK_FALSE(none.retry_stall);
    // Blocks of fsdp2 do not wait for streams: every rank retries at the same place.
    REQUIRE((less.retry_stall.has_value() || less.alloc_retries == 0));
    if (less.retry_stall) {
      CHECK(less.retry_stall->per_rank == static_cast<double>(less.alloc_retries));
      CHECK(less.retry_stall->per_step == less.retry_stall->per_rank);
      CHECK(less.retry_stall->low <= less.retry_stall->likely);
      CHECK(less.retry_stall->likely <= less.retry_stall->high);
    }
  }
  CHECK(reserved_of[true] < reserved_of[false]);
}

TEST_CASE("roles: ranks with smaller shards have their own memory") {
  // 3 ranks. Rows 11 (embedding, head) -> chunks 4, 4, 3; rows 10 (up) -> 4, 4, 2; rows 6 (down) -> 2, 2, 2. So ranks 0
  // and 1 are alike, and rank 2 holds 2 * 1 row of 6 and, per block, 2 rows of 6 less: (12 + 3 * 12) elements * 8 bytes
  // less of AdamW states.
  Setup s(3);
  const Prediction p = s.predicted();
  CHECK(p.roles == 2);
  CHECK(p.role_of_rank == std::vector<std::int32_t>{0, 0, 1});
  REQUIRE(p.other_roles.size() == 1);
  CHECK(p.memory.steady_step.start - p.other_roles[0].steady_step.start == 48 * 8);
  CHECK(memory_of(p, 1) == &p.memory);
  const Program last = lower(s.model, s.plan, s.impl, 2);
  CHECK(memory_of(p, 2)->steady_step == replay_memory(last).steady_step);
  Setup r(3, 2);
  CHECK(r.predicted().role_of_rank == std::vector<std::int32_t>{0, 0, 1, 0, 0, 1});
}

TEST_CASE("while searching only the numbers are made, and they are the same") {
  const Setup s(4);
  PredictOptions o;
  o.keep_timeline = false;
  const Prediction lean = s.predicted(o), full = s.predicted();
  CHECK(lean.step_time == full.step_time);
  CHECK(lean.peak_total == full.peak_total);
  CHECK(lean.mfu == full.mfu);
  CHECK(lean.order.empty());
  CHECK(lean.timeline.spans.empty());
}

TEST_CASE("micro-batches repeat: four of them tell the time of twelve (what the search relies on)") {
  for (const GradSync sync : {GradSync::every, GradSync::last, GradSync::reduce_scatter_only}) {
    Setup s(4, 2);
    s.plan.grad_sync = sync;
    const auto seconds = [&](std::size_t n) {
      s.plan.micro_batches.assign(n, 2);
      return s.predicted().step_time.count();
    };
    const double three = seconds(3), four = seconds(4);
    CHECK(seconds(12) == relative(four + 8 * (four - three)).epsilon(1e-3));
    const std::int64_t peak = s.predicted().peak_allocated.count();
    s.plan.micro_batches.resize(4);
    CHECK(s.predicted().peak_allocated.count() == peak);
  }
}

TEST_CASE("predictions written to disk read back equal") {
  Setup s(3);
  s.plan.clip_norm = 0.5;
  const Prediction p = s.predicted();
  const std::string text = to_json_text(p);
  const Prediction q = parse_prediction(text, "p.json");
  CHECK(to_json_text(q) == text);
  CHECK(q.provenance == p.provenance);
  CHECK(q.step_time == p.step_time);
  CHECK(q.verdict == p.verdict);
  CHECK(q.peak_active == p.peak_active);
  CHECK(q.alloc_retries == p.alloc_retries);
  CHECK(q.order == p.order);
  CHECK(q.issued == p.issued);
  CHECK(q.memory.first_step == p.memory.first_step);
  CHECK(q.memory.at_peak == p.memory.at_peak);
  CHECK(q.role_of_rank == p.role_of_rank);
  CHECK(q.other_roles.at(0).init == p.other_roles.at(0).init);
  CHECK(q.timeline.spans.size() == p.timeline.spans.size());
  CHECK(q.timeline.spans.back().end == p.timeline.spans.back().end);
  CHECK(q.where.exposed_all_gather == p.where.exposed_all_gather);
  const nlohmann::json now = nlohmann::json::parse(text);
  nlohmann::json earlier = now;  // of a version that did not write it
  REQUIRE(earlier["likely_80_percent"].erase("usable_bytes") == 1);
  CHECK(parse_prediction(earlier.dump(), "p.json").doubt.value().usable_bytes == 0);
  earlier["likely_80_percent"]["peak_low_bytes"] = 1024.5;  // or wrote fractions
  CHECK(parse_prediction(earlier.dump(), "p.json").doubt.value().peak_bytes.low == 1025);
  CHECK(q.doubt == p.doubt);
  for (const char* size : {"peak_low_bytes", "peak_high_bytes", "usable_bytes"})
    CHECK_MESSAGE(now["likely_80_percent"][size].is_number_integer(), size);
  for (std::size_t cut = 0; cut + 2 < text.size(); cut += 211)
    CHECK_THROWS_AS((void)parse_prediction(text.substr(0, cut), "p.json"), InputError);
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    std::string changed = text;
    const std::size_t at = changed.find(from);
    REQUIRE(at != std::string::npos);
    changed.replace(at, from.size(), to);
    CHECK_THROWS_WITH_AS((void)parse_prediction(changed, "p.json"), doctest::Contains(words), InputError);
  };
  refused("prediction/1", "measurement/1", "measurement/1");
  refused("\"verdict\":\"fits\"", "\"verdict\":\"maybe\"", "is no verdict");
  refused("\"role_of_rank\":[0,0,1]", "\"role_of_rank\":[0,0]", "one role for each of 3 ranks");
  refused("\"role_of_rank\":[0,0,1]", "\"role_of_rank\":[0,0,2]", "role_of_rank");
  refused("\"spans_s\":[", "\"spans_s\":[0,", "pairs of start and end");
  refused("\"points_bytes\":[", "\"points_bytes\":[-1,0,", "points_bytes");
  refused("\"ranks\":3", "\"ranks\":99999999999", "ranks");
  refused("\"mfu\"", "\"mfoo\"", "mfu");
}

TEST_CASE("what later versions add to a measurement comes back, and may be absent") {
  Measurement m;
  m.backend = "host";
  m.step_seconds = {0.25, 0.5};
  m.median_step_seconds = 0.375;
  const std::string old = to_json_text(m);
  for (const char* key : {"noise_of_steps", "machine", "process_memory"}) CHECK(old.find(key) == std::string::npos);
  CHECK_FALSE(parse_measurement(old, "m.json").steps.has_value());
  m.steps = StepNoise{3, false, "5 steps, as asked", 0.26, 0.49, Interval{0.25, 0.5}, 1.5};
  m.machine =
      MachineState{"cpu", "x86-64-v4", "BLAS 1", "2026-11-21 09:00 UTC", "performance", "on", 8, 4, true, 0.5, 1.5, 12,
                   3.5,   0.25,        0.125};
  m.memory = ProcessMemory{100, 90, 50, 20, 15, 5};
  RankMeasurement r;
  r.by_action = {{{Action::forward, OpKind::linear}, 2, 0.25}};
  r.by_unit = {{{0, "root"}, 0.25, 0.125}};
  r.where = Breakdown{};
  r.where->idle = Seconds(0.5);
  r.arena_bytes = 4096;
  r.arena_resident_bytes = 2048;
  m.ranks = {r};
  const Measurement back = parse_measurement(to_json_text(m), "m.json");
  CHECK(back.steps == m.steps);
  CHECK(back.machine == m.machine);
  CHECK(back.memory == m.memory);
  CHECK(back.ranks[0].by_unit == r.by_unit);
  CHECK(back.ranks[0].where->idle.count() == 0.5);
  CHECK(back.ranks[0].arena_resident_bytes == 2048);
  CHECK(to_json_text(back) == to_json_text(m));
  m.machine->other_cores.reset();
  m.steps->median_interval.reset();
  const Measurement less = parse_measurement(to_json_text(m), "m.json");
  CHECK_FALSE(less.machine->other_cores.has_value());
  CHECK_FALSE(less.steps->median_interval.has_value());
  const auto refused_with = [&](const std::string& from, const std::string& to) {
    std::string text = to_json_text(back);
    const std::size_t found = text.find(from);
    REQUIRE(found != std::string::npos);
    text.replace(found, from.size(), to);
    CHECK_THROWS_AS((void)parse_measurement(text, "m.json"), InputError);
  };
  refused_with("\"median_interval_s\":[0.25,0.5]", "\"median_interval_s\":[0.5,0.25]");
  refused_with("\"settled\":false", "\"settled\":1");
  refused_with("\"heap_bytes\":20", "\"heap_bytes\":-1");
  refused_with("\"wall_s\"", "\"walls\"");
}

TEST_CASE("doubts: a busy machine, steps that had not settled, a median that is not sure") {
  Measurement m;
  CHECK(doubts(m).empty());  // an earlier version: nothing is known
  m.ranks.resize(2);
  m.step_seconds.assign(20, 1.0);
  m.median_step_seconds = 1;
  m.steps = StepNoise{2, true, "20 steps, as asked", 1, 1, Interval{0.99, 1.01}, 20};
  m.machine = MachineState{};
  m.machine->cores = m.machine->usable_cores = 4;
  m.machine->other_cores = 0.05;
  m.machine->stolen_cores = 0;
  CHECK(doubts(m).empty());
  const auto says = [&](const char* words) {
    for (const std::string& d : doubts(m))
      if (d.find(words) != std::string::npos) return true;
    return false;
  };
  m.machine->other_cores = 1.25;
  CHECK(says("other processes kept 1.2 of its 4 cores") != says("other processes kept 1.3 of its 4 cores"));
  m.machine->other_cores.reset();
  m.machine->load_at_start = 3;
  CHECK(says("a load of 3.0"));
  m.machine->stolen_cores = 0.5;
  CHECK(says("took 0.50 cores away"));
  CHECK(doubts(*m.machine, 2).size() == 2);  // what calibrate says, which has no steps
  CHECK(doubts(*m.machine, 8).back().find("8 ranks shared 4 cores") != std::string::npos);
  m.ranks.resize(8);
  CHECK(says("8 ranks shared 4 cores"));
  m.steps->settled = false;
  CHECK(says("had not settled"));
  m.steps->median_interval = Interval{0.8, 1.2};
  CHECK(says("known to 20 % only"));
  m.steps->median_interval.reset();
  CHECK(says("as much as 20 independent ones"));
  m.step_seconds.resize(3);
  CHECK(says("3 steps are too few"));
}

TEST_CASE("measurements on disk, and compared after the way there and back") {
  Setup s(2);
  const Prediction p = s.predicted();
  Measurement m;
  m.provenance = p.provenance;
  m.backend = "host";
  m.environment = "made up";
  m.step_seconds = {0.1, 0.2};
  m.median_step_seconds = p.step_time.count();
  m.noise = 0.01;
  m.losses = {2.5, 2.25};
  m.by_action = p.by_action;
  m.process_high_water_bytes = 12345;
  for (std::int64_t r = 0; r < 2; ++r) {
    const ProgramMemory& own = *memory_of(p, r);
    m.ranks.push_back({r, p.order, p.timeline, own.init, own.first_step, own.steady_step, own.peak, 0, 77});
  }
  const std::string text = to_json_text(m);
  const Measurement back = parse_measurement(text, "m.json");
  CHECK(to_json_text(back) == text);
  CHECK(back.ranks[1].wire_bytes == 77);
  CHECK(compare(parse_prediction(to_json_text(p), "p.json"), back).within);
  for (std::size_t cut = 0; cut + 2 < text.size(); cut += 211)
    CHECK_THROWS_AS((void)parse_measurement(text.substr(0, cut), "m.json"), InputError);
}
