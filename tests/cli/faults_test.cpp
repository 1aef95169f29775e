// `fsdp-plan run` when it is interrupted: it ends by itself, not with 0, says why, and leaves what was
// there before as it was.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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

namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

struct Ended {
  int exit = -1, signal = 0;
  std::string said;  // standard error
};

class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("fsdp-plan-faults-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

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
    int status = 0;
    ::waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            text_of(path_ / "stderr")};
  }
  [[nodiscard]] const fs::path& path() const { return path_; }
  void write_plan() const {
    const fsdp::ModelGraph model = fsdp::load_model("tiny-llama", 16);
    fsdp::testing::PlanWords words;
    words.shard = 2, words.seq_len = 16;
    std::ofstream(path_ / "plan.json") << to_json_text(fsdp::testing::make_plan(model, words));
  }

 private:
  fs::path path_;
};

const std::vector<std::string> kEndless = {"run",  "--plan",  "plan.json", "--model", "tiny-llama",   "--backend",
                                           "host", "--steps", "1000000",   "-o",      "measured.json"};

std::size_t threads_of(pid_t child) {
  std::size_t n = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(child) + "/task", ignored))
    n += !entry.path().empty();
  return n;
}

}  // namespace

TEST_CASE("Ctrl-C ends a run: not with 0, with the step in words, and files are as they were") {
  const Folder folder;
  folder.write_plan();
  std::ofstream(folder.path() / "measured.json") << "from before";
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t child = folder.start(kEndless);
    while (threads_of(child) < 5)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // two ranks and their streams
    ::kill(child, signal);
    const Ended e = folder.wait(child);
    CHECK(e.exit == 3);
    CHECK_MESSAGE(
        e.said.find(signal == SIGINT ? "interrupted by SIGINT" : "interrupted by SIGTERM") != std::string::npos,
        e.said);
    CHECK_MESSAGE((e.said.find("[step ") != std::string::npos || e.said.find("[init") != std::string::npos), e.said);
    CHECK(text_of(folder.path() / "measured.json") == "from before");
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 3);  // no file half written
  }
}

TEST_CASE(
    "training that diverges: what is saved is from before, and no later checkpoint takes its place; a run without "
    "checkpoints says so") {
  const Folder folder;
  folder.write_plan();
  const std::vector<std::string> run = {"run",       "--plan", "plan.json", "--model", "tiny-llama",
                                        "--backend", "host",   "--warmup",  "1"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> words = run;
    words.insert(words.end(), more.begin(), more.end());
    return folder.wait(folder.start(words));
  };
  const Ended good = with({"--steps", "1", "--save", "ckpt", "--keep", "1"});
  CHECK_MESSAGE(good.exit == 0, good.said);
  const Ended saving =
      with({"--steps", "30", "--lr", "1e6", "--resume", "ckpt", "--save", "ckpt", "--save-every", "1", "--keep", "1"});
  CHECK(saving.exit == 3);
  CHECK_MESSAGE(saving.said.find("training has diverged") != std::string::npos, saving.said);
  CHECK_MESSAGE(saving.said.find("on synthetic tokens (--data trains on others)") != std::string::npos, saving.said);
  const Ended loads = with({"--steps", "1", "--resume", "ckpt"});
  CHECK_MESSAGE(loads.exit == 0, loads.said);
  const Ended timed = with({"--steps", "30", "--lr", "1e6", "-o", "measured.json", "--json"});
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
  std::istringstream launcher(FSDP_MPI_LAUNCH);
  const std::vector<std::string> mpirun{std::istream_iterator<std::string>(launcher), {}};
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

// The address sanitizer itself maps terabytes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kAnyAddressSpace = false;
#else
constexpr bool kAnyAddressSpace = true;
#endif

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
