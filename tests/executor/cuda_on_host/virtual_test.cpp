// The cuda backend on a CUDA runtime of our own (runtime.cpp): the conformance suite with virtual ranks, whole training
// runs that equal the host backend's bit by bit, and one rank of an emulated world.
#include <thread>

#include "executor/cuda_backend.h"
#include "models/cluster.h"
#include "planner/tensor/local_model.h"
#include "simulator/analysis/order.h"
#include "simulator/engine/memory.h"
#include "tests/executor/conformance/conformance.h"
#include "tests/executor/cuda/faults.h"
#include "tests/support/parity_support.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const Subject cuda{"cuda on the host", 0, [](MeshShape mesh, const BackendOptions& options) {
                              return make_cuda_backend(mesh,
                                                       {.run = options, .virtual_ranks = true, .arena = Memory::host});
                            }};
  return cuda;
}

}  // namespace fsdp::conformance

using namespace fsdp;
using namespace fsdp::testing;
using namespace fsdp::conformance;

namespace {

bool same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const NamedTensor& x, const NamedTensor& y) {
    return x.name == y.name && x.values.size() == y.values.size() &&
           std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(double)) == 0;
  });
}

RunResult on_cuda(const ModelGraph& model, const ShardingPlan& plan, Memory arena) {
  const auto backend =
      make_cuda_backend({plan.replicate(), plan.shard(), plan.tensor()}, {.virtual_ranks = true, .arena = arena});
  return run(model, plan, load_cluster("host", plan.ranks()), *backend, five_steps());
}

void check_equals_host(const ModelGraph& model, PlanWords words, Memory arena) {
  const ShardingPlan plan = make_plan(model, words);
  const RunResult mine = on_cuda(model, plan, arena), host = execute(model, plan, five_steps());
  CHECK(mine.measurement.losses == host.measurement.losses);
  CHECK(mine.measurement.losses.size() == 5);
  CHECK(same_bits(mine.parameters, host.parameters));
  CHECK(same_bits(mine.first_gradients, host.first_gradients));
  for (std::size_t r = 0; r < mine.measurement.ranks.size(); ++r) {
    const RankMeasurement &a = mine.measurement.ranks[r], &b = host.measurement.ranks[r];
    CHECK(a.order == b.order);
    const Program program =
        lower(local_model(model, plan), plan, native_cuda_implementation(), static_cast<std::int64_t>(r));
    CHECK(a.steady_step == replay_memory(program).steady_step);
    CHECK(a.wire_bytes == b.wire_bytes);
    CHECK(a.undeclared_bytes == 0);
  }
}

}  // namespace

TEST_CASE("a run with virtual ranks equals the host backend's, bit by bit") {
  const ModelGraph model =
      small_llama({.layers = 3, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  for (const Memory arena : {Memory::host, Memory::device}) {
    check_equals_host(model, {.shard = 1, .micro_batches = {1}}, arena);
    check_equals_host(model, {.shard = 3, .micro_batches = {1, 2}, .clip_norm = 0.05}, arena);
    check_equals_host(
        model, {.shard = 2, .replicate = 2, .compute = DType::bf16, .forward_prefetch = 1, .backward_prefetch = 2},
        arena);
    check_equals_host(model, {.replicate = 2, .micro_batches = {1, 2}, .dialect = Dialect::ddp}, arena);
  }
}

TEST_CASE("shard x tensor with virtual ranks equals the host backend, bit by bit") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 48, .hidden = 32, .inner = 40, .heads = 8, .kv_heads = 4});
  for (const Memory arena : {Memory::host, Memory::device}) {
    check_equals_host(model, {.shard = 2, .micro_batches = {1, 2}, .seq_len = 8, .clip_norm = 0.05, .tensor = 2},
                      arena);
    check_equals_host(model, {.shard = 1, .checkpointing = "full", .seq_len = 8, .tensor = 4}, arena);
    check_equals_host(model, {.shard = 2, .replicate = 2, .seq_len = 8, .compute = DType::bf16, .tensor = 2}, arena);
  }
}

TEST_CASE("fsdp1 with virtual ranks equals the host backend, bit by bit; what is held lies between the bounds") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  for (PlanWords words : {PlanWords{.shard = 3, .micro_batches = {1, 2}, .clip_norm = 0.05},
                          PlanWords{.shard = 2, .replicate = 2, .reshard = Reshard::no, .compute = DType::bf16},
                          PlanWords{.replicate = 2, .micro_batches = {1, 1}, .grad_sync = GradSync::last}}) {
    words.dialect = Dialect::fsdp1;
    const ShardingPlan plan = make_plan(model, words);
    const RunResult mine = on_cuda(model, plan, Memory::device), host = execute(model, plan, five_steps());
    CHECK(mine.measurement.losses == host.measurement.losses);
    CHECK(same_bits(mine.parameters, host.parameters));
    CHECK(same_bits(mine.first_gradients, host.first_gradients));
    for (std::size_t r = 0; r < mine.measurement.ranks.size(); ++r) {
      const RankMeasurement &a = mine.measurement.ranks[r], &b = host.measurement.ranks[r];
      CHECK(a.order == b.order);
      check_memory(a, lower(model, plan, native_cuda_implementation(), static_cast<std::int64_t>(r)));
      CHECK(a.wire_bytes == b.wire_bytes);
      CHECK(a.undeclared_bytes == 0);
    }
  }
}

TEST_CASE("one rank of an emulated world runs its plan alone, and says that it is emulated") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  const ShardingPlan plan = make_plan(model, {.shard = 64, .replicate = 8, .micro_batches = {1}});
  const ClusterSpec cluster = load_cluster("dgx-h100", 512);
  const auto backend = make_cuda_backend({8, 64}, {.emulate = EmulatedWorld{plan, cluster, default_costs(cluster)}});
  CHECK(backend->name() == "cuda-emulated");
  CHECK(backend->local_ranks() == std::vector<std::int64_t>{0});
  CHECK(backend->environment().find("emulated world of 512") != std::string::npos);
  RunOptions options;
  options.steps = 2;
  const RunResult result = run(model, plan, cluster, *backend, options);
  const Program program = lower(model, plan, native_cuda_implementation(), 0);
  CHECK(result.measurement.backend == "cuda-emulated");
  CHECK(result.measurement.ranks.size() == 1);
  CHECK(result.measurement.ranks.front().steady_step == replay_memory(program).steady_step);
  CHECK(result.measurement.ranks.front().order == order_of(program.steady_step, plan, model));
  // Each collective took at least the time that the costs say: the sum over the step's is known from them.
  const Demands demands = demands_of(program.steady_step, program,
                                     {model, plan, native_cuda_implementation(), cluster, default_costs(cluster)});
  double least = 0, took = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const Operation& op = program.steady_step.ops[i];
    if (op.action != Action::all_gather && op.action != Action::reduce_scatter && op.action != Action::all_reduce)
      continue;
    least += demands[i].alone.count();
    const auto span = result.measurement.ranks.front().timeline.spans[i];
    took += span.end - span.start;
  }
  CHECK(least > 0);
  CHECK(took >= 0.99 * least);
}

TEST_CASE("a failing rank ends all ranks; the next run works") { check_failing_rank_ends_all(3); }
TEST_CASE("a host function that throws ends all ranks") { check_throwing_host_function(); }

TEST_CASE("the watchdog names a rank that does not come, and one whose host function does not return") {
  const Failure absent = failure_of_absent_rank(1.0);
  CHECK_MESSAGE(absent.says("no rank has made progress"), absent.what);
  CHECK_MESSAGE(absent.says("waits in collective operation 7 for rank 1"), absent.what);
  const Failure stuck = failure_of({1, 2},
                                   [](Device& dev) {
                                     dev.reserve_arena(4096);
                                     dev.begin_step();
                                     dev.launch(3, D, {}, [rank = dev.rank()] {
                                       if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
                                     });
                                     dev.synchronize();
                                   },
                                   {1.0});
  CHECK_MESSAGE(stuck.says("rank 1 is inside operation 3 on stream compute"), stuck.what);
  CHECK(stuck.op == 3);
}

TEST_CASE("an arena that the GPU has no memory for is refused in words") {
  const Failure f = failure_of({1, 1}, [](Device& dev) { dev.reserve_arena(std::int64_t{1} << 45); });
  CHECK_MESSAGE(f.says("rank 0: "), f.what);
  CHECK_MESSAGE(f.says("cudaErrorMemoryAllocation"), f.what);
  CHECK_MESSAGE(f.says("nvidia-smi"), f.what);
}
