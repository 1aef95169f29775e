// The mpi backend: the conformance suite over processes, and runs that equal those over threads bit by bit. CTest
// starts it with mpirun (tests/support/mpi.cmake).
#include <fmt/format.h>

#include "executor/mpi_backend.h"
#include "planner/tensor/split.h"
#include "simulator/analysis/order.h"
#include "tests/executor/conformance/conformance.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const Subject mpi{"mpi", join_launch().ranks(), make_mpi_backend};
  return mpi;
}

}  // namespace fsdp::conformance

using namespace fsdp;
using namespace fsdp::testing;

namespace {

std::int64_t ranks() { return join_launch().ranks(); }
bool leads() { return join_launch().rank() == 0; }

RunResult over_processes(const ModelGraph& model, const ShardingPlan& plan, const RunOptions& options) {
  const auto backend = make_mpi_backend({plan.replicate(), plan.shard(), plan.tensor()});
  return run(model, plan, load_cluster("host", plan.ranks()), *backend, options);
}

bool same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const NamedTensor& x, const NamedTensor& y) {
    return x.name == y.name && x.values.size() == y.values.size() &&
           std::memcmp(x.values.data(), y.values.data(), x.values.size() * sizeof(double)) == 0;
  });
}

// Order and memory of every rank, as its own instruments saw them, are those of its own program.
void check_as_predicted(const Measurement& m, const ModelGraph& model, const ShardingPlan& plan) {
  REQUIRE(static_cast<std::int64_t>(m.ranks.size()) == plan.ranks());
  const ModelGraph local = split_over_tensor(model, plan);
  for (std::int64_t r = 0; r < plan.ranks(); ++r) {
    CAPTURE(r);
    const RankMeasurement& rank = m.ranks[static_cast<std::size_t>(r)];
    const Program program = lower(local, plan, native_implementation(), r);
    CHECK(rank.rank == r);
    CHECK(rank.order == order_of(program.steady_step, plan, local));
    check_memory(rank, program);
    CHECK(rank.undeclared_bytes == 0);
  }
}

void check_equals_threads(const ModelGraph& model, PlanWords words) {
  const ShardingPlan plan = make_plan(model, words);
  const RunResult mine = over_processes(model, plan, five_steps());
  if (!leads()) return;
  const RunResult threads = execute(model, plan, five_steps());
  CHECK(mine.measurement.losses == threads.measurement.losses);
  CHECK(mine.measurement.losses.size() == 5);
  CHECK(same_bits(mine.parameters, threads.parameters));
  CHECK(same_bits(mine.first_gradients, threads.first_gradients));
  check_as_predicted(mine.measurement, model, plan);
  for (std::size_t r = 0; r < mine.measurement.ranks.size(); ++r)
    CHECK(mine.measurement.ranks[r].wire_bytes == threads.measurement.ranks[r].wire_bytes);
  CHECK(mine.measurement.backend == "mpi");
}

}  // namespace

TEST_CASE("a sharded run over processes equals the same run over threads, bit by bit") {
  const ModelGraph model =
      small_llama({.layers = 3, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  const std::int64_t n = ranks();
  check_equals_threads(model, {.shard = n, .micro_batches = {1, 2}, .clip_norm = 0.05});
  check_equals_threads(model, {.shard = n, .compute = DType::bf16, .forward_prefetch = 1, .backward_prefetch = 2});
  check_equals_threads(
      model, {.shard = n, .checkpointing = "full", .compute = DType::f64, .reduce = DType::f64, .master = DType::f64});
  check_equals_threads(model, {.replicate = n, .micro_batches = {1, 2}, .dialect = Dialect::ddp});
  if (n % 2 == 0)
    check_equals_threads(
        model, {.shard = n / 2, .replicate = 2, .micro_batches = {1, 1}, .grad_sync = GradSync::reduce_scatter_only});
  if (n % 2 == 0) check_equals_threads(model, {.shard = 2, .replicate = n / 2, .wrap = "root"});
}

TEST_CASE("plans of fsdp1 over processes equal the same run over threads, bit by bit") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1});
  const std::int64_t n = ranks();
  const auto flat = [](PlanWords words) {
    words.dialect = Dialect::fsdp1;
    return words;
  };
  check_equals_threads(model, flat({.shard = n, .micro_batches = {1, 2}, .clip_norm = 0.05}));
  check_equals_threads(model, flat({.shard = n,
                                    .checkpointing = "full",
                                    .reshard = Reshard::no,
                                    .micro_batches = {1, 1},
                                    .compute = DType::bf16,
                                    .grad_sync = GradSync::last,
                                    .forward_prefetch = 1}));
  check_equals_threads(model, flat({.replicate = n, .compute = DType::bf16}));
  if (n % 2 == 0) check_equals_threads(model, flat({.shard = n / 2, .replicate = 2}));
}

TEST_CASE("plans with tensor ranks over processes equal the same run over threads, bit by bit") {
  const ModelGraph model =
      small_llama({.layers = 2, .vocab = 48, .hidden = 32, .inner = 40, .heads = 8, .kv_heads = 4});
  const std::int64_t n = ranks();
  const auto in_double = [](PlanWords words) {
    words.compute = words.reduce = words.master = DType::f64;
    words.seq_len = 8;
    return words;
  };
  if (n % 2 != 0) return;
  check_equals_threads(model, in_double({.shard = n / 2, .micro_batches = {1, 2}, .clip_norm = 0.05, .tensor = 2}));
  if (n % 4 == 0) check_equals_threads(model, in_double({.shard = n / 4, .checkpointing = "full", .tensor = 4}));
  if (n % 8 == 0) check_equals_threads(model, in_double({.shard = 2, .replicate = 2, .tensor = 2}));
}

TEST_CASE("the mesh must have as many ranks as there are processes; the measurement says where it ran") {
  std::string what;
  try {
    (void)make_mpi_backend({1, ranks() + 1});
  } catch (const InputError& e) {
    what = e.what();
  }
  CHECK_MESSAGE(what.find(fmt::format("= {} ranks, but {} process", ranks() + 1, ranks())) != std::string::npos, what);
  CHECK_MESSAGE(what.find(fmt::format("mpirun -n {}", ranks() + 1)) != std::string::npos, what);
  const auto backend = make_mpi_backend({1, ranks()});
  CHECK(backend->name() == "mpi");
  CHECK(backend->local_ranks() == std::vector<std::int64_t>{join_launch().rank()});
  CHECK(backend->environment().find("MPI") != std::string::npos);
  CHECK(backend->environment().find(ranks() > 1 ? "(ranks 0" : "(rank 0)") != std::string::npos);
}

TEST_CASE("texts of any size reach every rank in the order of the ranks") {
  conformance::on_ranks({1, ranks()}, [](Device& device, conformance::Checks& checks) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100'000}, std::size_t{3'000'000}}) {
      const std::string mine(size * static_cast<std::size_t>(device.rank() % 3),
                             static_cast<char>('a' + device.rank()));
      const std::vector<std::string> all = device.exchange(mine);
      checks.expect(static_cast<std::int64_t>(all.size()) == ranks());
      for (std::size_t r = 0; r < all.size(); ++r)
        checks.expect(all[r] == std::string(size * (r % 3), static_cast<char>('a' + r)));
    }
  });
}

TEST_CASE("after a failed run the next one works: nothing of it is left on its way") {
  using conformance::G;
  const MeshShape mesh{1, ranks()};
  for (int trial = 0; trial < 20; ++trial) {
    const conformance::Failure f = conformance::failure_of(mesh, [&](Device& device) {
      device.reserve_arena(1 << 22);
      device.begin_step();
      const BufferView b = device.allocate(G, 0, 1 << 20);
      for (std::int32_t op = 0; op < 20; ++op) {
        if (op == trial && device.rank() == trial % ranks()) throw InputError("here", "no more");
        device.all_gather(op, G, Communicator::shard, {}, b, (1 << 18) / ranks(), DType::f32);
      }
    });
    CHECK_MESSAGE(f.says("no more"), f.what);
    CHECK(f.rank == trial % ranks());
    conformance::on_ranks(mesh, [&](Device& device, conformance::Checks& checks) {
      device.reserve_arena(4096);
      device.begin_step();
      const BufferView b = device.allocate(G, 0, 8 * ranks());
      device.launch(0, G, {}, [b, trial, &device] {
        conformance::put(DType::f64, b.data, device.rank(), static_cast<double>(device.rank() + trial));
      });
      device.all_gather(1, G, Communicator::shard, {}, b, 1, DType::f64);
      device.synchronize();
      for (std::int64_t r = 0; r < ranks(); ++r)
        checks.expect(conformance::get(DType::f64, b.data, r) == static_cast<double>(r + trial));
    });
  }
}
