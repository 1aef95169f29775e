// The program itself as a process, by itself or under mpirun, in a folder of its own. Needs FSDP_PLAN_PROGRAM and
// FSDP_MPI_LAUNCH, the words of mpirun (empty: there is none).
#pragma once

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/run_support.h"

namespace fsdp::testing {

namespace fs = std::filesystem;

inline std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Ended {
  int exit = -1, signal = 0;
  bool in_time = true;
  std::string said;  // standard error
};

class RunFolder {
 public:
  RunFolder() : path_(fs::temp_directory_path() / ("fsdp-plan-faults-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~RunFolder() { fs::remove_all(path_); }
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Starts the program; `before` runs in its process first.
  [[nodiscard]] pid_t start(
      std::vector<std::string> words, const std::function<void()>& before = [] {}) const {
    words.insert(words.begin(), FSDP_PLAN_PROGRAM);
    return start_any(std::move(words), before);
  }
  [[nodiscard]] pid_t start_any(
      std::vector<std::string> words, const std::function<void()>& before = [] {}) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    const int nowhere = ::open("/dev/null", O_WRONLY),
              err = ::open((path_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(nowhere, 1);
    ::dup2(err, 2);
    if (::chdir(path_.c_str()) != 0) ::_exit(126);
    before();
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  [[nodiscard]] Ended wait(pid_t child) const {
    const Ended e = wait_at_most(child, std::chrono::minutes(5));
    REQUIRE_MESSAGE(e.in_time, "process " << child << " did not end and was killed: " << e.said);
    return e;
  }
  // A process that does not end in time is told to (mpirun then ends its ranks), and is killed ten seconds later.
  [[nodiscard]] Ended wait_at_most(pid_t child, std::chrono::milliseconds limit) const {
    int status = 0;
    const auto ended_within = [&](std::chrono::milliseconds time) {
      for (const auto end = std::chrono::steady_clock::now() + time; ::waitpid(child, &status, WNOHANG) == 0;
           std::this_thread::sleep_for(std::chrono::milliseconds(2)))
        if (std::chrono::steady_clock::now() > end) return false;
      return true;
    };
    const bool in_time = ended_within(limit);
    if (!in_time) ::kill(child, SIGTERM);
    if (!in_time && !ended_within(std::chrono::seconds(10))) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
    }
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0, in_time,
            text_of(path_ / "stderr")};
  }
  [[nodiscard]] const fs::path& path() const { return path_; }
  void write_plan(std::size_t micro_batches = 1) const {
    const ModelGraph model = load_model("tiny-llama", 16);
    PlanWords words;
    words.shard = 2, words.seq_len = 16;
    words.micro_batches.assign(micro_batches, 1);
    std::ofstream(path_ / "plan.json") << to_json_text(make_plan(model, words));
  }
  // Until log.csv has so many steps, or five minutes are over: on a busy machine ranks wait long for each other.
  void wait_for_steps(std::ptrdiff_t steps) const {
    for (int i = 0; i < 60'000; ++i) {
      const std::string log = text_of(path_ / "log.csv");
      if (std::count(log.begin(), log.end(), '\n') > steps) return;  // and the line of names
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    FAIL("the run makes no steps: " << text_of(path_ / "stderr"));
  }

 private:
  fs::path path_;
};

inline std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::vector<std::string> launcher() {
  std::istringstream words(FSDP_MPI_LAUNCH);
  return {std::istream_iterator<std::string>(words), {}};
}

// The process of Open MPI's rank below the launcher; 0: there is none.
inline pid_t rank_below(pid_t launcher, int rank) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string pid = entry.path().filename().string(), stat = text_of(entry.path() / "stat");
    if (pid.find_first_not_of("0123456789") != std::string::npos || stat.empty()) continue;
    std::istringstream after(stat.substr(stat.rfind(')') + 1));
    std::string state;
    pid_t parent = 0;
    after >> state >> parent;
    const std::string rank_is("OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + '\0');
    if (parent == launcher && text_of(entry.path() / "environ").find(rank_is) != std::string::npos)
      return std::stoi(pid);
  }
  return 0;
}

}  // namespace fsdp::testing
