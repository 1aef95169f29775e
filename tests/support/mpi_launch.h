// Launches of the test's own program under mpirun, one rank of which misbehaves: what is left of them, what they said,
// how long it took. Each process runs the program's (skipped) case "one rank of a launch", which learns from the
// environment what to do. Needs FSDP_MPI_LAUNCH: the words of mpirun; empty: there is none.
#pragma once

#include <dirent.h>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor/mpi_backend.h"
#include "tests/support/run_support.h"
#include "tests/support/small_models.h"

namespace fsdp::testing {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

inline std::string from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

[[noreturn]] inline void sleep_forever() {
  while (true) std::this_thread::sleep_for(1h);
}

inline void misbehave(const std::string& fault) {
  if (fault == "throw") throw std::runtime_error("the disk is on fire");
  if (fault == "bad_alloc") throw std::bad_alloc();
  if (fault == "exit") std::exit(0);
  if (fault == "exit5") std::exit(5);
  if (fault == "_exit") ::_exit(0);
  if (fault == "kill") ::kill(::getpid(), SIGKILL);
  if (fault == "terminate") ::kill(::getpid(), SIGTERM);
  if (fault == "abort") std::abort();
  if (fault == "stop") {
    ::kill(::getpid(), SIGSTOP);
    std::this_thread::sleep_for(200ms);  // it takes effect a little later
  }
  if (fault == "slow")
    std::ofstream(from_environment("TMPDIR") + "/reached").flush();  // the launch may be interrupted now
  if (fault == "stuck" || fault == "slow" || fault == "terminate") sleep_forever();
}

// --- one rank ---

// What a rank of a launch runs, and when the victim misbehaves: five steps of a small model, sharded over all ranks.
// Here the moments "joined" (before the run), "between" (steps 1 and 2) and "after 1234" (microseconds of the run,
// which then takes `many_steps`); the caller adds those inside a step, where `steps_done` is 1.
struct FaultyRank {
  Launch& launch;
  bool mine = false;  // this rank is the victim
  ModelGraph model;
  ShardingPlan plan;
  RunOptions options;
  std::shared_ptr<std::atomic<std::int64_t>> steps_done = std::make_shared<std::atomic<std::int64_t>>(0);
};

inline FaultyRank faulty_rank(const std::string& fault, const std::string& moment, std::int64_t victim,
                              int many_steps) {
  Launch& launch = join_launch();
  FaultyRank r{launch,
               launch.rank() == victim,
               small_llama({.layers = 3, .vocab = 37, .hidden = 20, .inner = 30, .heads = 5, .kv_heads = 1}),
               {},
               five_steps(false)};
  r.plan = make_plan(r.model, {.shard = launch.ranks(), .reshard = Reshard::yes, .clip_norm = 1.0});
  r.options.steps = moment.starts_with("after ") ? many_steps : 4;
  r.options.after_step = [=, mine = r.mine, steps = r.steps_done](const RankState& state) {
    steps->store(state.steps_done);
    if (mine && moment == "between" && state.steps_done == 1) misbehave(fault);
  };
  if (r.mine && moment.starts_with("after "))
    std::thread([fault, us = std::stol(moment.substr(6))] {
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      misbehave(fault);
    }).detach();
  if (r.mine && moment == "joined") misbehave(fault);
  return r;
}

// --- all of them ---

struct Outcome {
  int code = -1;
  double seconds = 0;
  bool launcher_hangs = false;         // mpirun did not end by itself after all ranks had
  std::string errors;                  // standard error
  std::vector<std::string> sentences;  // ours
  std::vector<std::string> left;       // processes and files
  std::string open_mpi_left;           // a file of Open MPI's own, see `launch`
};

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Folder {
  fs::path path = fs::temp_directory_path() / ("fsdp-mpi-faults-" + std::to_string(::getpid()));
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

// Processes, no zombies, whose environment names this launch.
inline std::vector<std::string> processes_of(const std::string& launch) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(::getpid())) continue;
    if (read_text(entry.path() / "environ").find("FSDP_TEST_LAUNCH=" + launch) != std::string::npos)
      found.push_back("process " + pid);
  }
  return found;
}

inline std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

// Runs `mpirun -n ranks` of this program; `interrupt` > 0: sends mpirun that signal half a second after a rank has
// become slow. (To start may take MPI ten seconds, where it looks up names that nobody answers for.)
inline Outcome launch(std::int64_t ranks, const std::string& fault, const std::string& moment, std::int64_t victim,
                      int interrupt = 0) {
  static int count = 0;
  const Folder folder;
  const std::string name = std::to_string(::getpid()) + "-" + std::to_string(++count);
  std::vector<std::string> words = words_of(FSDP_MPI_LAUNCH);
  for (const std::string& w :
       {std::string("-n"), std::to_string(ranks), fs::read_symlink("/proc/self/exe").string(),
        std::string("--test-case=one rank of a launch"), std::string("--no-skip"), std::string("--minimal")})
    words.push_back(w);
  const auto begin = Clock::now();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::setpgid(0, 0);
    for (const auto& [key, value] : std::vector<std::pair<const char*, std::string>>{
             {"FSDP_TEST_FAULT", fault},
             {"FSDP_TEST_MOMENT", moment},
             {"FSDP_TEST_VICTIM", std::to_string(victim)},
             {"FSDP_TEST_LAUNCH", name},
             {"TMPDIR", folder.path.string()},
             {"OMPI_MCA_btl_vader_backing_directory", folder.path.string()}})
      ::setenv(key, value.c_str(), 1);
    ::dup2(::open((folder.path / "out").c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open((folder.path / "err").c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    std::vector<char*> arguments;
    for (std::string& w : words) arguments.push_back(w.data());
    arguments.push_back(nullptr);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  Outcome o;
  int status = 0, looks = 0, alone_looks = 0;
  for (bool sent = interrupt == 0; ::waitpid(child, &status, WNOHANG) == 0;) {
    const auto since = Clock::now() - begin;
    if (!sent && fs::exists(folder.path / "reached")) {
      std::this_thread::sleep_for(500ms);
      ::kill(child, interrupt);
      sent = true;
    }
    if (since > 60s) ::kill(-child, SIGKILL);
    // Open MPI 4.1's mpirun may wait for ever after a rank died while it connected to it. All ranks have ended then.
    if (since > 12s && ++looks % 100 == 0) {
      const bool alone = processes_of(name) == std::vector<std::string>{"process " + std::to_string(child)};
      alone_looks = alone ? alone_looks + 1 : 0;
      if (alone_looks == 4) o.launcher_hangs = true, ::kill(-child, SIGKILL);
    }
    std::this_thread::sleep_for(10ms);
  }
  o.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  o.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  for (const auto limit = Clock::now() + 3s; !(o.left = processes_of(name)).empty() && Clock::now() < limit;)
    std::this_thread::sleep_for(50ms);
  o.errors = read_text(folder.path / "err");
  std::istringstream lines(o.errors);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("fsdp-plan: ")) o.sentences.push_back(line);
  // A process that is killed just as Open MPI 4.1 makes its segment may leave it: once in a few hundred launches, and
  // with a program that does nothing but MPI_Init as well.
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    const std::string file = entry.path().filename().string();
    if (file == "out" || file == "err" || file == "reached" || (o.launcher_hangs && file.starts_with("ompi.")))
      continue;
    if (moment.starts_with("start ") && file.starts_with("vader_segment.") && o.open_mpi_left.empty()) {
      o.open_mpi_left = file;
    } else {
      o.left.push_back(file);
    }
  }
  return o;
}

// Ten seconds for the end, and what it takes to start processes on a busy machine.
inline constexpr double kLimit = 10 + 20;

inline void check_ends(const Outcome& o, const std::vector<std::string>& says) {
  CAPTURE(o.errors);
  CHECK(o.code != 0);
  CHECK(o.seconds < kLimit);
  REQUIRE(o.sentences.size() == 1);
  for (const std::string& words : says) CHECK_MESSAGE(o.sentences[0].find(words) != std::string::npos, words);
  for (const std::string& what : o.left) CHECK_MESSAGE(what.empty(), "left behind: " << what);
  if (!o.open_mpi_left.empty()) MESSAGE("left behind by Open MPI: " << o.open_mpi_left);
  MESSAGE(o.sentences[0] << " (" << o.seconds << " s" << std::string(o.launcher_hangs ? ", then mpirun hung)" : ")"));
}

// Without a fault the launch ends with 0, says nothing and leaves nothing.
inline void check_ends_well(const Outcome& o) {
  CAPTURE(o.errors);
  CHECK(o.code == 0);
  CHECK(o.errors.empty());
  CHECK(o.left.empty());
}

inline bool can_launch() {
  if (std::string(FSDP_MPI_LAUNCH).empty()) MESSAGE("skipped: no MPI was found when this was built");
  return !std::string(FSDP_MPI_LAUNCH).empty();
}

}  // namespace fsdp::testing
