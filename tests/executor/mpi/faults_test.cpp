// When a rank that is a process fails, is killed, stopped or gets stuck, every process of the launch ends, soon, with
// one message that names the rank, the operation and the step, and nothing is left behind. The test starts mpirun with
// itself; each process of that runs one rank of a small model (the skipped case below), and one of them misbehaves as
// the environment says.
#include <atomic>
#include <cstdio>
#include <fstream>
#include <memory>

#include "executor/mpi_backend.h"
#include "tests/support/mpi_launch.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// --- one rank ---

bool is_moment(const std::string& moment, const Operation& op) {
  if (moment == "init") return op.action == Action::init_parameters;
  if (moment == "forward" || moment == "collective") return op.action == Action::forward;
  if (moment == "backward") return op.action == Action::backward;
  return moment == "optimizer" && op.action == Action::optimizer;
}

// Inside a step the fault comes in the second (or in init).
int one_rank(const std::string& fault, const std::string& moment, std::int64_t victim) {
  FaultyRank r = faulty_rank(fault, moment, victim, 400);
  auto begun = std::make_shared<std::atomic<bool>>(false);
  r.options.in_kernel = [=, mine = r.mine, steps = r.steps_done](const Operation& op, std::int64_t) {
    const bool now = is_moment(moment, op) && (moment == "init" || steps->load() == 1) && !begun->exchange(true);
    if (now && moment != "collective" && mine) misbehave(fault);
    if (!now || moment != "collective") return;
    // The others are late for the collectives that come, so that the victim is inside one after a while.
    if (!mine) std::this_thread::sleep_for(500ms);
    else
      std::thread([fault] {
        std::this_thread::sleep_for(250ms);
        misbehave(fault);
      }).detach();
  };
  try {
    const auto backend = make_mpi_backend({r.plan.replicate(), r.plan.shard()}, {fault == "stuck" ? 1.0 : 60.0});
    (void)run(r.model, r.plan, load_cluster("host", r.plan.ranks()), *backend, r.options);
    if (moment == "afterwards" && r.mine) misbehave(fault);
  } catch (const std::exception& e) {
    if (r.launch.is_reporter()) std::fprintf(stderr, "fsdp-plan: %s\n", e.what());
    return 3;
  }
  return 0;
}

// --- all of them ---

const std::vector<std::string> kMoments = {"init", "forward", "collective", "backward", "optimizer", "between"};

std::vector<std::string> where(const std::string& moment) {
  if (moment == "init") return {"[init, operation", "init_parameters"};
  if (moment == "collective") return {"[step 2, operation", ": all_gather"};
  if (moment == "between") return {"[step 1"};
  return {"[step 2, operation", ": " + moment};
}

void check_fault(const std::string& fault, const std::string& words, const std::vector<std::string>& moments,
                 bool says_where = true) {
  if (!can_launch()) return;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const std::int64_t victim = i % 3 == 0 ? 0 : 2;
    CAPTURE(fault);
    CAPTURE(moments[i]);
    CAPTURE(victim);
    std::vector<std::string> says = says_where ? where(moments[i]) : std::vector<std::string>();
    says.push_back("rank " + std::to_string(victim));
    says.push_back(words);
    check_ends(launch(4, fault, moments[i], victim), says);
  }
}

}  // namespace

TEST_CASE("one rank of a launch" * doctest::skip()) {
  std::exit(one_rank(from_environment("FSDP_TEST_FAULT"), from_environment("FSDP_TEST_MOMENT"),
                     std::stol(from_environment("FSDP_TEST_VICTIM"))));
}

TEST_CASE("without a fault the launch ends with 0, says nothing and leaves nothing") {
  if (!can_launch()) return;
  check_ends_well(launch(4, "none", "never", 2));
}

TEST_CASE("a rank that is killed") { check_fault("kill", "died", kMoments); }
TEST_CASE("a rank that crashes") { check_fault("abort", "died", {"forward", "collective", "between"}); }
TEST_CASE("a rank that throws") {
  check_fault("throw", "the disk is on fire", {"init", "forward", "backward", "optimizer", "between"});
}
TEST_CASE("a rank that runs out of memory") {
  check_fault("bad_alloc", "out of memory on this machine", {"init", "forward", "optimizer"});
}
TEST_CASE("a rank that calls exit(0)") { check_fault("exit", "called exit(0)", kMoments); }
TEST_CASE("a rank that calls exit(5)") { check_fault("exit5", "called exit(5)", {"forward"}); }
TEST_CASE("a rank that calls _exit(0)") { check_fault("_exit", "died", {"forward", "collective"}); }
TEST_CASE("a rank that is stopped") {
  check_fault("stop", "is stopped", {"init", "forward", "collective", "optimizer", "between"});
}
TEST_CASE("a rank that gets stuck") {
  check_fault("stuck", "no rank has made progress for 1 s", {"init", "forward", "backward", "between"});
}

TEST_CASE("a rank that is killed or stopped before the run, or at any time") {
  if (!can_launch()) return;
  check_ends(launch(4, "kill", "joined", 2), {"rank 2 died"});
  check_ends(launch(4, "kill", "joined", 0), {"rank 0 died"});
  check_ends(launch(2, "stop", "joined", 1), {"rank 1 is stopped"});
  for (int i = 0; i < 16; ++i) {
    const std::string moment = "after " + std::to_string(9100 * i + 400 * i * i);  // microseconds: up to 0.2 s
    CAPTURE(moment);
    check_ends(launch(i % 2 == 0 ? 4 : 2, "kill", moment, i % 2), {"rank " + std::to_string(i % 2) + " died"});
  }
  for (const char* moment : {"after 20000", "after 70000", "after 300000"})
    check_ends(launch(4, "stop", moment, 1), {"rank 1 is stopped"});
}

TEST_CASE("Ctrl-C and SIGTERM end all ranks, wherever they are") {
  if (!can_launch()) return;
  for (const int signal : {SIGINT, SIGTERM}) {
    check_ends(launch(4, "slow", "forward", 2, signal), {"interrupted by SIG"});
    check_ends(launch(4, "slow", "joined", 1, signal), {"interrupted by SIG"});
    check_ends(launch(4, "slow", "afterwards", 1, signal), {"interrupted by SIG"});
  }
}

TEST_CASE("a rank that alone gets SIGTERM is named") {
  check_fault("terminate", "was interrupted by SIGTERM; it ", {"forward", "between"}, false);
  if (can_launch()) check_ends(launch(4, "terminate", "joined", 2), {"rank 2 was interrupted by SIGTERM"});
}

TEST_CASE("when the launcher itself is killed, no rank stays behind") {
  if (!can_launch()) return;
  const Outcome o = launch(4, "slow", "forward", 2, SIGKILL);
  for (const std::string& what : o.left) CHECK_MESSAGE(!what.starts_with("process"), what);
}
