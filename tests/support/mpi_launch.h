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

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
  if (fault == "abort") std::abort();
  if (fault == "stop") {
    ::kill(::getpid(), SIGSTOP);
    std::this_thread::sleep_for(200ms);  // it takes effect a little later
  }
  if (fault == "slow")
    std::ofstream(from_environment("TMPDIR") + "/reached").flush();  // the launch may be interrupted now
  if (fault == "stuck" || fault == "slow") sleep_forever();
}

// --- all of them ---

struct Outcome {
  int code = -1;
  double seconds = 0;
  std::string errors;                  // standard error
  std::vector<std::string> sentences;  // ours
  std::vector<std::string> left;       // processes and files
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
  int status = 0;
  for (bool sent = interrupt == 0; ::waitpid(child, &status, WNOHANG) == 0;) {
    const auto since = Clock::now() - begin;
    if (!sent && fs::exists(folder.path / "reached")) {
      std::this_thread::sleep_for(500ms);
      ::kill(child, interrupt);
      sent = true;
    }
    if (since > 60s) ::kill(-child, SIGKILL);
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
  for (const auto& entry : fs::directory_iterator(folder.path))
    if (const std::string file = entry.path().filename().string(); file != "out" && file != "err" && file != "reached")
      o.left.push_back(file);
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
  MESSAGE(o.sentences[0] << " (" << o.seconds << " s)");
}

inline bool can_launch() {
  if (std::string(FSDP_MPI_LAUNCH).empty()) MESSAGE("skipped: no MPI was found when this was built");
  return !std::string(FSDP_MPI_LAUNCH).empty();
}

}  // namespace fsdp::testing
