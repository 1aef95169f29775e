// When a process of the cuda backend fails, is killed, stopped or gets stuck while others wait for it inside NCCL,
// every process of the launch ends, soon, with one message that names the rank, the operation and the step, and nothing
// is left behind.
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "executor/cuda_backend.h"
#include "executor/mpi_backend.h"
#include "tests/support/mpi_launch.h"

namespace fsdp::cuda {
std::function<void(const Operation&)>&
kernel_hook();  // kernels.cpp: called by the rank's thread before it puts a kernel on a stream
}

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Inside a step the fault comes when the victim launches the first kernel of the moment's kind in the second (or in
// init).
void one_rank(const std::string& fault, const std::string& moment, std::int64_t victim) {
  ::setenv("CUDA_HOME", FSDP_NCCL_HOME, 1);
  FaultyRank r = faulty_rank(fault, moment, victim, 4000);
  if (r.mine)
    cuda::kernel_hook() = [=, steps = r.steps_done](const Operation& op) {
      const bool now = moment == "init"      ? op.action == Action::init_parameters
                       : steps->load() != 1  ? false
                       : moment == "forward" ? op.action == Action::forward
                                             : moment == "backward" && op.action == Action::backward;
      if (now) misbehave(fault);
    };
  try {
    const auto backend =
        make_cuda_backend({r.plan.replicate(), r.plan.shard()},
                          {.run = {fault == "stuck" ? 3.0 : 60.0}, .processes = true, .arena = Memory::host});
    (void)run(r.model, r.plan, load_cluster("host", r.plan.ranks()), *backend, r.options);
  } catch (const std::exception& e) {  // as cli/commands/run.cpp does
    if (r.launch.is_reporter()) std::fprintf(stderr, "fsdp-plan: %s\n", e.what());
    std::fflush(nullptr);
    r.launch.end(3);
  }
  std::exit(0);
}

void check_fault(const std::string& fault, const std::string& words, const std::vector<std::string>& moments) {
  if (!can_launch()) return;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const std::int64_t victim = i % 2 == 0 ? 2 : 0;
    CAPTURE(fault);
    CAPTURE(moments[i]);
    const std::string where = moments[i] == "init"      ? "[init"
                              : moments[i] == "between" ? "[step 1"
                                                        : "[step 2, operation";
    check_ends(launch(4, fault, moments[i], victim), {"rank " + std::to_string(victim), words, where});
  }
}

}  // namespace

TEST_CASE("one rank of a launch" * doctest::skip()) {
  one_rank(from_environment("FSDP_TEST_FAULT"), from_environment("FSDP_TEST_MOMENT"),
           std::stol(from_environment("FSDP_TEST_VICTIM")));
}

TEST_CASE("without a fault the launch ends with 0, says nothing and leaves nothing") {
  if (!can_launch()) return;
  check_ends_well(launch(4, "none", "never", 2));
}

TEST_CASE("a rank that is killed") { check_fault("kill", "died", {"init", "forward", "backward", "between"}); }
TEST_CASE("a rank that crashes") { check_fault("abort", "died", {"forward"}); }
TEST_CASE("a rank that throws") {
  check_fault("throw", "the disk is on fire", {"init", "forward", "backward", "between"});
}
TEST_CASE("a rank that calls exit(0)") { check_fault("exit", "called exit(0)", {"forward"}); }
TEST_CASE("a rank that is stopped") { check_fault("stop", "is stopped", {"forward", "between"}); }
TEST_CASE("a rank that gets stuck") {
  check_fault("stuck", "no rank has made progress for 3 s", {"forward", "backward"});
}

TEST_CASE("a rank that is killed before the run, or at any time of it") {
  if (!can_launch()) return;
  check_ends(launch(4, "kill", "joined", 2), {"rank 2 died"});
  for (int i = 0; i < 6; ++i) {
    const std::string moment = "after " + std::to_string(9100 * i + 50000 * i * i);  // microseconds: up to 1.3 s
    CAPTURE(moment);
    check_ends(launch(i % 2 == 0 ? 4 : 2, "kill", moment, i % 2), {"rank " + std::to_string(i % 2) + " died"});
  }
}

TEST_CASE("Ctrl-C ends all ranks") {
  if (!can_launch()) return;
  check_ends(launch(4, "slow", "forward", 2, SIGINT), {"interrupted by SIG"});
}
