// The cuda backend whose ranks are processes, one GPU each, on a CUDA runtime and an NCCL of our own (runtime.cpp,
// nccl.cpp): the conformance suite, but for what NCCL does not promise and what only threads can see, and training.
// CTest starts it with mpirun (tests/support/mpi.cmake).
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "executor/cuda_backend.h"
#include "executor/mpi_backend.h"
#include "tests/executor/conformance/conformance.h"
#include "tests/executor/cuda/faults.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const bool found = ::setenv("CUDA_HOME", FSDP_NCCL_HOME, 1) == 0;
  static const Subject cuda{found ? "cuda and nccl on the host, processes" : "", join_launch().ranks(),
                            [](MeshShape mesh, const BackendOptions& options) {
                              return make_cuda_backend(mesh,
                                                       {.run = options, .processes = true, .arena = Memory::host});
                            }};
  return cuda;
}

}  // namespace fsdp::conformance

using namespace fsdp;
using namespace fsdp::testing;
using namespace fsdp::conformance;

namespace {

std::int64_t ranks() { return join_launch().ranks(); }
std::int64_t rank() { return join_launch().rank(); }

ModelGraph model() {
  return small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
}

RunResult over_processes(const ShardingPlan& plan) {
  const auto backend = subject().make({plan.replicate(), plan.shard()}, {});
  return run(model(), plan, load_cluster("host", plan.ranks()), *backend, five_steps());
}

std::string refusal(MeshShape mesh, const CudaOptions& options) {
  try {
    (void)make_cuda_backend(mesh, options);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

bool same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const NamedTensor& x, const NamedTensor& y) {
    return x.name == y.name && x.values.size() == y.values.size() &&
           std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(double)) == 0;
  });
}

}  // namespace

TEST_CASE(
    "a sharded run over processes trains as the host backend does, bit by bit: this NCCL adds in the order of the "
    "ranks") {
  const std::int64_t n = ranks();
  std::vector<PlanWords> all = {{.shard = n, .micro_batches = {1, 2}, .clip_norm = 0.05},
                                {.replicate = n, .dialect = Dialect::ddp}};
  if (n % 2 == 0) all.push_back({.shard = n / 2, .replicate = 2});
  for (const PlanWords& words : all) {
    const ShardingPlan plan = make_plan(model(), words);
    const RunResult mine = over_processes(plan);
    if (rank() != 0) continue;
    const RunResult host = execute(model(), plan, five_steps());
    CHECK(mine.measurement.losses == host.measurement.losses);
    CHECK(mine.measurement.losses.size() == 5);
    CHECK(same_bits(mine.parameters, host.parameters));
    CHECK(same_bits(mine.first_gradients, host.first_gradients));
    REQUIRE(static_cast<std::int64_t>(mine.measurement.ranks.size()) == n);
    for (std::size_t r = 0; r < mine.measurement.ranks.size(); ++r)
      CHECK(mine.measurement.ranks[r].wire_bytes == host.measurement.ranks[r].wire_bytes);
    CHECK(mine.measurement.backend == "cuda");
    CHECK_MESSAGE(
        mine.measurement.environment.find(fmt::format("{} processes with a GPU each", n)) != std::string::npos,
        mine.measurement.environment);
  }
}

TEST_CASE("the mesh is of as many ranks as there are processes") {
  const std::string what = refusal({1, ranks() + 1}, {.processes = true});
  CHECK_MESSAGE(what.find(fmt::format("= {} ranks, but {} process", ranks() + 1, ranks())) != std::string::npos, what);
  CHECK_MESSAGE(what.find(fmt::format("mpirun -n {} fsdp-plan run --backend cuda", ranks() + 1)) != std::string::npos,
                what);
  CHECK(refusal({1, ranks()}, {.virtual_ranks = true, .processes = true}).find("virtual_ranks: ") == 0);
}

TEST_CASE("each process takes a GPU of its own; two on one are refused by name, unless NCCL is told to allow it") {
  const MeshShape mesh{1, ranks()};
  CHECK(subject().make(mesh, {})->local_ranks() == std::vector<std::int64_t>{rank()});
  ::setenv("CUDA_ON_HOST_GPUS", std::to_string(ranks() - 1).c_str(), 1);
  const std::string what = refusal(mesh, {.processes = true});
  CHECK_MESSAGE(what.find(fmt::format("ranks 0 and {} are on one GPU, 0 of ", ranks() - 1)) != std::string::npos, what);
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  CHECK(refusal(mesh, {.processes = true}).empty());
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
  ::setenv("CUDA_ON_HOST_GPUS", "1", 1);
  CHECK(refusal(mesh, {.processes = true, .devices = {1}}).find("there is no GPU 1") != std::string::npos);
  ::unsetenv("CUDA_ON_HOST_GPUS");
}

TEST_CASE("processes that read different plans are told so before they hang") {
  const ShardingPlan plan = make_plan(model(), {.shard = ranks(), .seed = rank() == 1 ? 7u : 8u});
  std::string what;
  try {
    (void)over_processes(plan);
  } catch (const RankFailure& e) {
    what = e.what();
  }
  CHECK_MESSAGE(what.find("run different plans or models") != std::string::npos, what);
  CHECK_MESSAGE(what.find("and 1") + what.find("1 and") != 2 * std::string::npos, what);
}

TEST_CASE("a rank that fails ends the others although they wait inside NCCL, and the next run works") {
  check_failing_rank_ends_all(ranks());
}

TEST_CASE("a rank that does not come is named by the watchdog") {
  const Failure f = failure_of({1, ranks()},
                               [](Device& dev) {
                                 dev.reserve_arena(4096);
                                 dev.begin_step();
                                 const BufferView b = dev.allocate(G, 0, 1024);
                                 if (dev.rank() != 0) return;
                                 dev.all_gather(7, G, Communicator::shard, {}, b, 8, DType::f32);
                                 dev.synchronize();
                               },
                               {3.0});
  CHECK_MESSAGE(f.says("no rank has made progress for 3 s"), f.what);
  CHECK_MESSAGE(f.says("operation 7"), f.what);
}
