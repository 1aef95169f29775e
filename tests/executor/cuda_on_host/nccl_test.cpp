// The cuda backend with a GPU for each rank, on a CUDA runtime and an NCCL of our own (runtime.cpp, nccl.cpp; that one
// adds in the order of the ranks, which NCCL does not promise): the conformance suite, and training.
#include <cstdlib>

#include "executor/cuda_backend.h"
#include "tests/executor/conformance/conformance.h"
#include "tests/executor/cuda/faults.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

namespace fsdp::conformance {

const Subject& subject() {
  static const bool found = ::setenv("CUDA_HOME", FSDP_NCCL_HOME, 1) == 0;
  static const Subject cuda{found ? "cuda and nccl on the host" : "", 0,
                            [](MeshShape mesh, const BackendOptions& options) {
                              return make_cuda_backend(mesh, {.run = options, .arena = Memory::host});
                            }};
  return cuda;
}

}  // namespace fsdp::conformance

using namespace fsdp;
using namespace fsdp::testing;
using namespace fsdp::conformance;

TEST_CASE("the NCCL that answers is the one beside the test") {
  const auto backend = subject().make({1, 2}, {});
  CHECK(backend->environment().find(FSDP_NCCL_HOME) != std::string::npos);
  CHECK(backend->environment().find("2 GPUs") != std::string::npos);
}

TEST_CASE("a sharded run over NCCL trains as the host backend does") {
  const ModelGraph odd = small_llama({.layers = 2, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1}),
                   even = small_llama({.layers = 1, .vocab = 48, .hidden = 32, .inner = 40, .heads = 8, .kv_heads = 4});
  for (const PlanWords& words :
       {PlanWords{.shard = 3, .micro_batches = {1, 2}}, PlanWords{.shard = 2, .replicate = 2},
        PlanWords{.replicate = 2, .dialect = Dialect::ddp}, PlanWords{.shard = 2, .dialect = Dialect::fsdp1},
        PlanWords{.shard = 2, .seq_len = 8, .clip_norm = 0.05, .tensor = 2}}) {
    const ModelGraph& model = words.tensor > 1 ? even : odd;
    const ShardingPlan plan = make_plan(model, words);
    const auto backend = subject().make({plan.replicate(), plan.shard(), plan.tensor()}, {});
    const RunResult mine = run(model, plan, load_cluster("host", plan.ranks()), *backend, five_steps()),
                    host = execute(model, plan, five_steps());
    CHECK(mine.measurement.losses == host.measurement.losses);  // this NCCL adds in the order of the ranks
    CHECK(mine.measurement.ranks.back().wire_bytes == host.measurement.ranks.back().wire_bytes);
  }
}

TEST_CASE("a rank that fails, or does not come, ends the others although they wait inside NCCL; the next run works") {
  check_failing_rank_ends_all(4);
  const Failure absent = failure_of_absent_rank(1.0);
  CHECK_MESSAGE(absent.says("no rank has made progress"), absent.what);
}
