// The conformance suite (executor_conformance*.cpp) on the cuda backend: virtual ranks on one GPU, the arena in pinned
// host memory, because the suite's bodies touch buffers. Says so in one line and does nothing where there is no GPU
// (CTest: skipped).
#include "tests/executor/conformance/conformance.h"
#include "tests/executor/cuda/faults.h"
#include "tests/gpu_check/gpu_main.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const Subject cuda{"cuda", 0, [](MeshShape mesh, const BackendOptions& options) {
                              return make_cuda_backend(mesh,
                                                       {.run = options, .virtual_ranks = true, .arena = Memory::host});
                            }};
  return cuda;
}

}  // namespace fsdp::conformance

using namespace fsdp;
using namespace fsdp::conformance;

TEST_CASE("an arena on the GPU is written by collectives and read through bytes_of") {
  for (const MeshShape mesh : {MeshShape{1, 1}, MeshShape{1, 3}, MeshShape{2, 2}}) {
    const auto backend = make_cuda_backend(mesh, {.virtual_ranks = true});
    Checks checks;
    backend->run(
        [&](Device& dev) {
          const std::int64_t n = 1000, ranks = mesh.replicate * mesh.shard;
          dev.reserve_arena(1 << 20);
          dev.reserve_arena(1 << 16, Memory::host);
          const BufferView in_host = dev.allocate(D, 0, 4 * n, Memory::host),
                           on_gpu = dev.allocate(D, 0, 4 * n * ranks);
          const BufferView sum = dev.allocate(D, 4 * n * ranks, 4 * n);
          for (std::int64_t i = 0; i < n; ++i) put(DType::f32, in_host.data, i, static_cast<double>(dev.rank() + i));
          dev.begin_step();
          dev.all_reduce(0, A, Communicator::world, {}, in_host, n, DType::f32, Reduction::sum);
          const std::int32_t e0[] = {0};
          dev.reduce_scatter(1, R, {Communicator::reshard, 1}, e0, in_host, sum, n, DType::f32,
                             {ReductionKind::scaled_sum, 0.5});  // host to GPU
          dev.synchronize();
          std::vector<std::byte> copy;
          const std::span<const std::byte> bytes = dev.bytes_of(sum, copy);
          checks.expect(bytes.size() == static_cast<std::size_t>(4 * n) && bytes.data() == copy.data(), "a copy");
          for (std::int64_t i = 0; i < n; ++i)
            checks.expect(
                get(DType::f32, bytes.data(), i) == 0.5 * static_cast<double>(ranks * i + ranks * (ranks - 1) / 2),
                "half the sum");
          (void)on_gpu;
        },
        std::vector<Comm>{{Communicator::reshard, 1}});
    checks.finish();
    CHECK(backend->name() == "cuda");
    CHECK(backend->environment().find("virtual rank") != std::string::npos);
  }
}

TEST_CASE("a failing rank ends all ranks, and the next run works") { check_failing_rank_ends_all(3); }
TEST_CASE("a host function that throws names its operation, and nobody waits for ever") {
  check_throwing_host_function();
}
TEST_CASE("a rank that does not come to a collective ends the run after the watchdog's time") {
  const Failure f = failure_of_absent_rank(2.0);
  CHECK_MESSAGE(f.says("no rank has made progress"), f.what);
}
