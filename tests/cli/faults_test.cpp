// `fsdp-plan run` when it is interrupted: it ends after its step with all that it has done, or at once, says why, and
// leaves what was there before as it was.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "simulator/records/measurement.h"
#include "tests/cli/program_process.h"

using namespace fsdp::testing;

namespace {

using Folder = RunFolder;

const std::vector<std::string> kEndless = {"run",  "--plan",  "plan.json", "--model", "tiny-llama",   "--backend",
                                           "host", "--steps", "1000000",   "-o",      "measured.json"};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAnyAddressSpace = false;  // the address sanitizer itself maps terabytes
constexpr std::size_t kLongStep = 60;     // micro-batches, each of which takes many times as long
#else
constexpr bool kAnyAddressSpace = true;
constexpr std::size_t kLongStep = 800;  // micro-batches: a step takes 1.5 s or more
#endif
// After a signal, those of 0.2 s do not count as a second one. On a busy machine the first may come late.
constexpr auto kSecondSignal = std::chrono::milliseconds(600);

}  // namespace

TEST_CASE("a process that hangs is given up by the tests, not waited for") {
  const Folder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Ended hangs = folder.wait_at_most(folder.start_any({"sleep", "1000"}), std::chrono::milliseconds(100));
  CHECK_FALSE(hangs.in_time);
  CHECK(hangs.signal == SIGTERM);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
  const Ended ends = folder.wait_at_most(folder.start_any({"true"}), std::chrono::minutes(1));
  CHECK(ends.in_time);
  CHECK(ends.exit == 0);
}

TEST_CASE("a hang-up, or a second signal, ends a run at once: the step in words, files are as they were") {
  const Folder folder;
  folder.write_plan(kLongStep);
  std::ofstream(folder.path() / "measured.json") << "from before";
  for (const int signal : {SIGHUP, SIGINT, SIGUSR1, SIGTERM}) {
    CAPTURE(signal);
    fs::remove(folder.path() / "log.csv");
    const pid_t child = folder.start(with(kEndless, {"--log", "log.csv"}));
    folder.wait_for_steps(1);
    if (signal != SIGHUP) {
      ::kill(child, SIGINT);
      std::this_thread::sleep_for(kSecondSignal);
    }
    ::kill(child, signal);
    const Ended e = folder.wait(child);
    CHECK(e.exit == 3);
    CHECK_MESSAGE(e.said.find("interrupted by SIG") != std::string::npos, e.said);
    CHECK_MESSAGE((e.said.find("[step ") != std::string::npos || e.said.find("[init") != std::string::npos), e.said);
    CHECK(text_of(folder.path() / "measured.json") == "from before");
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 4);  // no file half written
  }
}

// The folder of the only checkpoint below `path`, and the number of its step.
std::pair<fs::path, int> only_checkpoint(const fs::path& path) {
  std::pair<fs::path, int> found;
  int checkpoints = 0;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("step-")) continue;
    found = {entry.path(), std::stoi(name.substr(5))};
    ++checkpoints;
  }
  REQUIRE(checkpoints == 1);
  return found;
}

// Exit code 4, a measurement that says where the run ended, and the checkpoint that a run of as many steps writes.
void check_stopped(const Folder& folder, const Ended& e, const std::string& signal, const std::string& what_runs) {
  CAPTURE(e.said);
  CHECK(e.exit == 4);
  const fsdp::Measurement m = fsdp::parse_measurement(text_of(folder.path() / "measured.json"), "measured.json");
  REQUIRE(m.early_stop.has_value());
  CHECK(m.early_stop->reason == signal);
  CHECK(m.early_stop->steps_asked == 1'000'001);
  const auto steps = static_cast<std::size_t>(m.early_stop->steps_run);
  CHECK(m.losses.size() == steps);
  CHECK(e.said.find("stopped by " + signal + " after " + std::to_string(steps) + " of 1000001 steps") !=
        std::string::npos);
  const auto [stopped, step] = only_checkpoint(folder.path() / "ckpt");
  CHECK(step == m.early_stop->steps_run);
  if (what_runs != "host") return;
  CHECK(e.said.find("the run ends after this step, at the earliest the second") != std::string::npos);
  const Ended straight =
      folder.wait(folder.start({"run", "--plan", "plan.json", "--model", "tiny-llama", "--backend", "host", "--warmup",
                                "1", "--steps", std::to_string(step - 1), "--save", "straight"}));
  CHECK_MESSAGE(straight.exit == 0, straight.said);
  for (const char* file : {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"})
    CHECK_MESSAGE(text_of(stopped / file) == text_of(only_checkpoint(folder.path() / "straight").first / file), file);
  fs::remove_all(folder.path() / "straight");
}

TEST_CASE("SIGINT, SIGUSR1 and SIGTERM end a run after a whole step, with checkpoint and measurement") {
  const Folder folder;
  folder.write_plan();
  for (const auto& [signal, name] :
       {std::pair{SIGINT, "SIGINT"}, std::pair{SIGUSR1, "SIGUSR1"}, std::pair{SIGTERM, "SIGTERM"}}) {
    CAPTURE(name);
    for (const char* left : {"log.csv", "ckpt", "measured.json"}) fs::remove_all(folder.path() / left);
    const pid_t child = folder.start(with(kEndless, {"--log", "log.csv", "--save", "ckpt", "--warmup", "1"}));
    folder.wait_for_steps(4);
    ::kill(child, signal);
    ::kill(child, signal);  // as `timeout` does
    check_stopped(folder, folder.wait(child), name, "host");
  }
}

TEST_CASE("mpirun forwards SIGUSR1, and one rank alone may get it: all ranks end after the same step") {
  const std::vector<std::string> mpirun = launcher();
  if (mpirun.empty()) return;  // no MPI was found when this was built
  const Folder folder;
  folder.write_plan();
  for (const bool one_rank : {false, true}) {
    CAPTURE(one_rank);
    for (const char* left : {"log.csv", "ckpt", "measured.json"}) fs::remove_all(folder.path() / left);
    std::vector<std::string> words = with(mpirun, {"-n", "2", FSDP_PLAN_PROGRAM});
    words = with(words, with(kEndless, {"--log", "log.csv", "--save", "ckpt", "--warmup", "1"}));
    std::replace(words.begin(), words.end(), std::string("host"), std::string("mpi"));
    const pid_t child = folder.start_any(words);
    folder.wait_for_steps(4);
    const pid_t to = one_rank ? rank_below(child, 1) : child;
    REQUIRE(to > 0);
    ::kill(to, SIGUSR1);
    check_stopped(folder, folder.wait(child), "SIGUSR1", "mpi");
  }
}

TEST_CASE("under mpirun a second SIGUSR1 ends all ranks at once, and nothing is written") {
  const std::vector<std::string> mpirun = launcher();
  if (mpirun.empty()) return;  // no MPI was found when this was built
  const Folder folder;
  folder.write_plan(kLongStep);
  std::vector<std::string> words = with(with(mpirun, {"-n", "2", FSDP_PLAN_PROGRAM}), kEndless);
  words.insert(words.end(), {"--log", "log.csv"});
  std::replace(words.begin(), words.end(), std::string("host"), std::string("mpi"));
  const pid_t child = folder.start_any(words);
  folder.wait_for_steps(1);
  ::kill(child, SIGUSR1);
  std::this_thread::sleep_for(kSecondSignal);
  ::kill(child, SIGUSR1);
  const Ended e = folder.wait(child);
  CHECK(e.exit != 0);
  CHECK(e.exit != 4);
  CHECK_MESSAGE(e.said.find("interrupted by SIGUSR1") != std::string::npos, e.said);
  CHECK_FALSE(std::ifstream(folder.path() / "measured.json").good());
}

TEST_CASE("under mpirun all ranks of a run that --check finds outside the tolerances end with exit code 1") {
  const std::vector<std::string> mpirun = launcher();
  if (mpirun.empty()) return;  // no MPI was found when this was built
  const Folder folder;
  folder.write_plan();
  const Ended predicts =
      folder.wait(folder.start({"simulate", "--plan", "plan.json", "--model", "tiny-llama", "--cluster", "dgx-h100",
                                "--implementation", "native", "-o", "prediction.json"}));
  REQUIRE_MESSAGE(predicts.exit == 0, predicts.said);
  const std::vector<std::string> run = with(with(mpirun, {"-n", "2", FSDP_PLAN_PROGRAM}),
                                            {"run", "--plan", "plan.json", "--model", "tiny-llama", "--backend", "mpi",
                                             "--prediction", "prediction.json", "--check"});
  const Ended e = folder.wait(folder.start_any(run));
  CHECK(e.exit == 1);
  CHECK_MESSAGE(e.said.find("MPI_ABORT") == std::string::npos, e.said);
  CHECK_MESSAGE(e.said.find("interrupted") == std::string::npos, e.said);
}

TEST_CASE(
    "a cut run that is repeated with --until-step ends at that step, as one straight run, and then has no more to do") {
  const Folder folder;
  folder.write_plan();
  const std::vector<std::string> mpirun = launcher();
  const auto run_with = [&](const std::string& backend, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run",  "--plan", "plan.json",     "--model", "tiny-llama", "--backend", backend,
                                      "--lr", "1e-3",   "--lr-schedule", "cosine",  "--warmup",   "1"};
    words = with(words, more);
    if (backend == "host") return folder.wait(folder.start(words));
    return folder.wait(folder.start_any(with(with(mpirun, {"-n", "2", FSDP_PLAN_PROGRAM}), words)));
  };
  const Ended straight = run_with("host", {"--until-step", "6", "--save", "straight"});
  CHECK_MESSAGE(straight.exit == 0, straight.said);
  for (const std::string backend : {"host", "mpi"}) {
    if (backend == "mpi" && mpirun.empty()) continue;  // no MPI was found when this was built
    for (const int cut : {3, 4, 5}) {
      CAPTURE(backend);
      CAPTURE(cut);
      fs::remove_all(folder.path() / "ckpt");
      const Ended first = run_with(backend, {"--steps", std::to_string(cut - 1), "--lr-steps", "6", "--save", "ckpt"});
      CHECK_MESSAGE(first.exit == 0, first.said);
      const std::vector<std::string> again = {"--until-step", "6",    "--save",         "ckpt",
                                              "--resume",     "ckpt", "--fresh-if-none"};
      const Ended second = run_with(backend, with(again, {"--keep", "1"}));
      CHECK_MESSAGE(second.exit == 0, second.said);
      CHECK(second.said.find("learning rate is 0") == std::string::npos);
      const auto [folder_of_last, step] = only_checkpoint(folder.path() / "ckpt");
      CHECK(step == 6);
      for (const char* file : {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"})
        CHECK_MESSAGE(text_of(folder_of_last / file) == text_of(folder.path() / "straight/step-00000006" / file), file);
      const Ended third = run_with(backend, again);
      CHECK(third.exit == 0);
      CHECK_MESSAGE(third.said.find("has 6 steps, --until-step asks for 6\n") != std::string::npos, third.said);
      const Ended fourth = run_with(backend, with(again, {"-o", "none.json", "--json"}));
      CHECK(fourth.exit == 0);
      CHECK_MESSAGE(
          fourth.said.find("asks for 6; none.json is not written; --json has nothing to print\n") != std::string::npos,
          fourth.said);
      CHECK_FALSE(fs::exists(folder.path() / "none.json"));
    }
  }
}

TEST_CASE("a run says when the learning rate of its steps is 0; one that goes on decays to its own last step") {
  const Folder folder;
  folder.write_plan();
  const auto said = [&](const std::vector<std::string>& more) {
    const Ended e = folder.wait(folder.start(with({"run", "--plan", "plan.json", "--model", "tiny-llama", "--backend",
                                                   "host", "--warmup", "1", "--steps", "3", "--lr-schedule", "cosine"},
                                                  more)));
    CHECK_MESSAGE(e.exit == 0, e.said);
    return e.said;
  };
  const std::string zero = "note: the learning rate is 0 from step ";
  const std::string first = said({"--lr-steps", "3", "--save", "ckpt"});
  CHECK_MESSAGE(first.find(zero + "4 on") != std::string::npos, first);
  const std::string all = said({"--lr-steps", "3", "--resume", "ckpt"});
  CHECK_MESSAGE(all.find(zero + "5 on") != std::string::npos, all);
  const std::string least = said({"--lr-steps", "3", "--lr-min", "1e-5", "--resume", "ckpt"});
  CHECK_MESSAGE(least.find(zero) == std::string::npos, least);
  const std::string goes_on = said({"--resume", "ckpt"});
  CHECK_MESSAGE(goes_on.find(zero) == std::string::npos, goes_on);
  CHECK_MESSAGE(goes_on.find("cosine to 0 after step 8") != std::string::npos, goes_on);
}

TEST_CASE(
    "training that diverges: what is saved is from before, and no later checkpoint takes its place; a run without "
    "checkpoints says so") {
  const Folder folder;
  folder.write_plan();
  const std::vector<std::string> run = {"run",       "--plan", "plan.json", "--model", "tiny-llama",
                                        "--backend", "host",   "--warmup",  "1"};
  const auto run_with = [&](const std::vector<std::string>& more) {
    return folder.wait(folder.start(with(run, more)));
  };
  const Ended good = run_with({"--steps", "1", "--save", "ckpt", "--keep", "1"});
  CHECK_MESSAGE(good.exit == 0, good.said);
  const Ended saving = run_with(
      {"--steps", "30", "--lr", "1e6", "--resume", "ckpt", "--save", "ckpt", "--save-every", "1", "--keep", "1"});
  CHECK(saving.exit == 3);
  CHECK_MESSAGE(saving.said.find("training has diverged") != std::string::npos, saving.said);
  CHECK_MESSAGE(saving.said.find("on synthetic tokens (--data trains on others)") != std::string::npos, saving.said);
  const Ended loads = run_with({"--steps", "1", "--resume", "ckpt"});
  CHECK_MESSAGE(loads.exit == 0, loads.said);
  const Ended timed = run_with({"--steps", "30", "--lr", "1e6", "-o", "measured.json", "--json"});
  CHECK_MESSAGE(timed.exit == 0, timed.said);
  CHECK_MESSAGE(timed.said.find("note: the loss was no number from step") != std::string::npos, timed.said);
  CHECK_NOTHROW(fsdp::parse_measurement(text_of(folder.path() / "measured.json"), "measured.json"));
}

TEST_CASE("a launcher's process does not run all ranks by itself") {
  const Folder folder;
  folder.write_plan();
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const Ended e = folder.wait(folder.start(kEndless, [=] { ::setenv(name, "2", 1); }));
    CHECK(e.exit == 2);
    CHECK_MESSAGE(e.said.find("one of 2 processes that a launcher started") != std::string::npos, e.said);
    const Ended virtual_ranks = folder.wait(
        folder.start({"run", "--plan", "plan.json", "--model", "tiny-llama", "--backend", "cuda", "--virtual-ranks"},
                     [=] { ::setenv(name, "2", 1); }));
    CHECK(virtual_ranks.exit == 2);
    CHECK_MESSAGE(virtual_ranks.said.find("--virtual-ranks: this is one of 2 processes that a launcher started") !=
                      std::string::npos,
                  virtual_ranks.said);
  }
}

TEST_CASE("a mesh of another size than the launch is refused by name, once") {
  const std::vector<std::string> mpirun = launcher();
  if (mpirun.empty()) return;  // no MPI was found when this was built
  const Folder folder;
  folder.write_plan();
  for (const std::string backend : {"mpi", "cuda"}) {
    std::vector<std::string> words = mpirun;
    for (const std::string& w : {std::string("-n"), std::string("3"), std::string(FSDP_PLAN_PROGRAM),
                                 std::string("run"), std::string("--plan"), std::string("plan.json"),
                                 std::string("--model"), std::string("tiny-llama"), std::string("--backend"), backend})
      words.push_back(w);
    const Ended e = folder.wait(folder.start_any(words));
    CHECK(e.exit != 0);
    const std::string ours = "fsdp-plan: ";
    const std::size_t at = e.said.find(ours);
    REQUIRE_MESSAGE(at != std::string::npos, e.said);
    CHECK_MESSAGE(e.said.find(ours, at + 1) == std::string::npos, e.said);
    const bool named =
        e.said.find("--backend " + backend + ": the plan is for 1 x 2 = 2 ranks, but 3 processes were started", at) !=
        std::string::npos;
    CHECK_MESSAGE((named || e.said.find("cuda is not built in", at) != std::string::npos), e.said);
  }
}

TEST_CASE("too little address space is said before the run, not met in it" * doctest::skip(!kAnyAddressSpace)) {
  const Folder folder;
  folder.write_plan();
  for (const rlim_t mib : {300, 450, 600, 950}) {
    const Ended e = folder.wait(folder.start(kEndless, [=] {
      const rlimit limit{mib << 20, mib << 20};
      ::setrlimit(RLIMIT_AS, &limit);
    }));
    CHECK(e.exit == 3);
    CHECK_MESSAGE(e.said.find("ulimit -v") != std::string::npos, e.said);
  }
}
