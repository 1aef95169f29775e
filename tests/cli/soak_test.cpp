// Real runs that are killed, stopped and interrupted, one after the other, each going on from the checkpoint that the
// one before left: on the host backend and under mpirun, at any moment from the start of the process on. None may
// hang, lose a checkpoint that it has reported, or fail without naming the rank. A minute of it is in `./dev test`;
// `./dev soak SECONDS` is more (FSDP_SOAK_SECONDS, FSDP_SOAK_SEED).
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>
#include <set>

#include "executor/checkpoint/checkpoint.h"
#include "executor/checkpoint/folder.h"
#include "tests/cli/program_process.h"

using namespace fsdp;
using namespace fsdp::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kHangs = 60s;  // from the fault to the end of all processes, on a busy machine
constexpr std::int64_t kRanks = 2;
constexpr std::int64_t kLongChain = 600;  // steps after which a chain of runs is compared with one straight run

constexpr const char* kModel = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
 "hidden_size": 16, "intermediate_size": 40, "max_position_embeddings": 64, "num_attention_heads": 2,
 "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 64})";

std::int64_t from_environment(const char* name, std::int64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::stoll(text) : otherwise;
}

struct Fault {
  bool mpi = false;
  int signal = SIGKILL;
  int victim = 0;            // rank; -1: the launcher
  double after = 0;          // seconds from the start
  std::ptrdiff_t steps = 0;  // > 0: after so many steps of this run instead
};

struct Tally {
  int host_kills = 0, mpi_kills = 0, rank_faults = 0, start_up = 0, asked = 0, asked_again = 0, straight = 0,
      launcher_hangs = 0;
  int hangs = 0, lost = 0, unnamed = 0, left = 0;
  double slowest = 0;
};

class Soak {
 public:
  explicit Soak(std::uint64_t seed) : random_(seed), mpirun_(launcher()) {
    std::ofstream(folder_.path() / "config.json") << kModel;
    const ModelGraph model = load_model((folder_.path() / "config.json").string(), 8);
    PlanWords words;
    words.shard = kRanks, words.seq_len = 8;
    std::ofstream(folder_.path() / "plan.json") << to_json_text(make_plan(model, words));
  }

  void one() {
    const Fault f = draw();
    CAPTURE(f.mpi);
    CAPTURE(f.signal);
    CAPTURE(f.victim);
    CAPTURE(f.after);
    CAPTURE(f.steps);
    const std::int64_t before = newest();
    fs::remove(folder_.path() / "log.csv");
    std::vector<std::string> words = run_words(f.mpi ? "mpi" : "host", 1'000'000);
    words.insert(words.end(), {"--log", "log.csv", "--resume", "ckpt", "--fresh-if-none", "--keep", "2"});
    const pid_t child = start(f.mpi, words);
    const bool hit = strike(f, child);
    finish(f, child, hit);
    check_checkpoint(before);
    if (newest() > kLongChain) compare_with_straight();
  }

  [[nodiscard]] const Tally& tally() const { return tally_; }

 private:
  double uniform(double to) { return to * std::uniform_real_distribution<double>(0, 1)(random_); }

  Fault draw() {
    Fault f;
    f.mpi = !mpirun_.empty() && uniform(1) < 0.2;
    if (uniform(1) < 0.4) f.steps = 1 + static_cast<std::ptrdiff_t>(uniform(20));
    f.after = uniform(!f.mpi || uniform(1) < 0.6 ? 0.35 : 1.5);  // half of them before the first step
    const double kind = uniform(1);
    if (!f.mpi) {
      f.signal = kind < 0.9 ? SIGKILL : kind < 0.93 ? SIGINT : kind < 0.96 ? SIGUSR1 : SIGTERM;
      return f;
    }
    f.victim = kind < 0.2 ? -1 : static_cast<int>(uniform(kRanks));
    const double which = uniform(1);
    f.signal = which < 0.5 ? SIGKILL : which < 0.7 ? SIGTERM : which < 0.8 ? SIGUSR1 : f.victim < 0 ? SIGKILL : SIGSTOP;
    return f;
  }

  [[nodiscard]] std::vector<std::string> run_words(const std::string& backend, std::int64_t steps) const {
    return {"run",
            "--plan",
            "plan.json",
            "--model",
            "config.json",
            "--backend",
            backend,
            "--steps",
            std::to_string(steps),
            "--warmup",
            "1",
            "--save",
            "ckpt",
            "--save-every",
            "1"};
  }

  pid_t start(bool mpi, const std::vector<std::string>& words) {
    std::vector<std::string> all;
    if (mpi) all = with(mpirun_, {"-n", std::to_string(kRanks)});
    all.emplace_back(FSDP_PLAN_PROGRAM);
    mark_ = std::to_string(::getpid()) + "-" + std::to_string(++runs_);
    seen_.clear();
    return folder_.start_any(with(all, words), [this] {
      ::setpgid(0, 0);
      ::setenv("FSDP_SOAK_RUN", mark_.c_str(), 1);
      ::setenv("TMPDIR", folder_.path().c_str(), 1);
      ::setenv("OMPI_MCA_btl_vader_backing_directory", folder_.path().c_str(), 1);
    });
  }

  [[nodiscard]] std::ptrdiff_t logged() const {
    const std::string log = text_of(folder_.path() / "log.csv");
    return std::max<std::ptrdiff_t>(0, std::count(log.begin(), log.end(), '\n') - 1);
  }
  // The last step that the run says to have done: saved before it was logged.
  [[nodiscard]] std::int64_t last_logged() const {
    std::istringstream log(text_of(folder_.path() / "log.csv"));
    std::int64_t last = 0;
    for (std::string line; std::getline(log, line) && !log.eof();)  // a line without its end is not there yet
      if (!line.empty() && line[0] >= '0' && line[0] <= '9') last = std::stoll(line);
    return last;
  }
  [[nodiscard]] std::int64_t newest() const {
    const auto steps = saved_steps(machine_file_system(), (folder_.path() / "ckpt").string());
    return steps.empty() ? 0 : steps.back();
  }

  // False: there was nobody to strike.
  bool strike(const Fault& f, pid_t child) {
    const auto begin = Clock::now();
    while (f.steps > 0 ? logged() < f.steps : Clock::now() - begin < std::chrono::duration<double>(f.after)) {
      if (Clock::now() - begin > 60s) return false;
      std::this_thread::sleep_for(1ms);
    }
    pid_t target = child;
    if (f.mpi && f.victim >= 0)
      while ((target = rank_below(child, f.victim)) == 0 && Clock::now() - begin < 60s)
        std::this_thread::sleep_for(1ms);
    if (target == 0) return false;
    in_start_up_ = logged() == 0;
    alone_ = 0;
    (void)processes();
    ::kill(target, f.signal);
    struck_ = Clock::now();
    return true;
  }

  void finish(const Fault& f, pid_t child, bool hit) {
    REQUIRE(hit);
    int status = 0;
    bool ended = false;
    while (!ended && Clock::now() - struck_ < kHangs) {
      ended = ::waitpid(child, &status, WNOHANG) != 0;
      if (!ended) std::this_thread::sleep_for(2ms);
      ask_again(f, child);
      if (!ended && launcher_alone(f, child)) {
        ++tally_.launcher_hangs;
        ::kill(child, SIGKILL);
      }
    }
    const std::string said = text_of(folder_.path() / "stderr");
    CAPTURE(said);
    const double seconds = std::chrono::duration<double>(Clock::now() - struck_).count();
    tally_.slowest = std::max(tally_.slowest, seconds);
    if (!ended) {
      ++tally_.hangs;
      FAIL_CHECK("the run has not ended " << seconds << " s after the fault");
      for (const pid_t p : processes()) ::kill(p, SIGKILL);
      ::waitpid(child, &status, 0);
    }
    for (const auto limit = Clock::now() + 10s; (!processes().empty() || some_end()) && Clock::now() < limit;)
      std::this_thread::sleep_for(5ms);
    for (const pid_t p : processes()) {
      ++tally_.left;
      FAIL_CHECK("process " << p << " is left");
      ::kill(p, SIGKILL);
    }
    count(f);
    if (f.mpi && f.victim >= 0) check_named(f, status, said);
    if (!f.mpi && f.signal != SIGKILL) check_asked(status, WIFSIGNALED(status) && WTERMSIG(status) == f.signal);
  }

  // Open MPI 4.1's launcher may wait for ever after a rank died while it connected to it. All ranks have ended then:
  // for ten seconds nothing but the launcher was there.
  bool launcher_alone(const Fault& f, pid_t child) {
    if (!f.mpi || Clock::now() - looked_ < 1s || Clock::now() - struck_ < 10s) return false;
    looked_ = Clock::now();
    const std::vector<pid_t> all = processes();
    alone_ = all.size() == 1 && all.front() == child ? alone_ + 1 : 0;
    return alone_ == 10;
  }

  // Open MPI's launcher loses a signal that it forwards before its ranks have started.
  void ask_again(const Fault& f, pid_t child) {
    if (!f.mpi || f.victim >= 0 || f.signal != SIGUSR1 || !in_start_up_ || Clock::now() - struck_ < 10s) return;
    if (text_of(folder_.path() / "stderr").find("fsdp-plan: asked to stop") != std::string::npos) return;
    ++tally_.asked_again;
    ::kill(child, SIGUSR1);
    in_start_up_ = false;  // once
    struck_ = Clock::now();
  }

  void count(const Fault& f) {
    if (f.mpi && f.victim >= 0) {
      ++tally_.rank_faults;
      if (in_start_up_) ++tally_.start_up;
    }
    if (f.signal == SIGKILL) ++(f.mpi ? tally_.mpi_kills : tally_.host_kills);
    else if (!f.mpi || f.signal == SIGUSR1) ++tally_.asked;
  }

  // Before the program listens, a signal ends it as it ends any other.
  void check_asked(int status, bool before_it_listens) const {
    const bool asked = WIFEXITED(status) && WEXITSTATUS(status) == 4;
    CHECK((asked || (before_it_listens && in_start_up_)));
  }

  // SIGUSR1 asks all ranks to end, after it is listened to; every other fault is one sentence that names the rank.
  void check_named(const Fault& f, int status, const std::string& said) {
    if (f.signal == SIGUSR1 && WIFEXITED(status) && WEXITSTATUS(status) == 4) return;
    int sentences = 0;
    bool named = false;
    std::istringstream lines(said);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("fsdp-plan: ") || line.starts_with("fsdp-plan: asked to stop")) continue;
      ++sentences;
      named = named || line.find("rank " + std::to_string(f.victim) + " ") != std::string::npos;
    }
    if (sentences != 1 || !named) {
      ++tally_.unnamed;
      FAIL_CHECK(sentences << " sentences, rank " << f.victim << (named ? " named" : " not named"));
    }
  }

  // One that has given back its memory shows no environment any more, and may still hold the lock of the checkpoint.
  [[nodiscard]] bool some_end() const {
    for (const pid_t p : seen_) {
      std::error_code gone;
      fs::directory_iterator thread("/proc/" + std::to_string(p) + "/task", gone);
      for (; !gone && thread != fs::directory_iterator(); thread.increment(gone)) {
        const std::string stat = text_of(thread->path() / "stat");  // "pid (name) state ..."
        const std::size_t state = stat.rfind(')') + 2;
        if (state < stat.size() && stat[state] != 'Z' && stat[state] != 'X') return true;
      }
    }
    return false;
  }

  [[nodiscard]] std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    const std::string mark = "FSDP_SOAK_RUN=" + mark_ + '\0';
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string pid = entry.path().filename().string();
      if (pid.find_first_not_of("0123456789") == std::string::npos &&
          text_of(entry.path() / "environ").find(std::string(mark.c_str(), mark.size())) != std::string::npos)
        found.push_back(std::stoi(pid));
    }
    seen_.insert(found.begin(), found.end());
    return found;
  }

  // What was reported is there, all of it, and nothing went back.
  void check_checkpoint(std::int64_t before) {
    const std::int64_t now = newest(), reported = std::max(before, last_logged());
    if (now < reported) {
      ++tally_.lost;
      FAIL_CHECK("step " << reported << " was reported, step " << now << " is there");
    }
    if (now == 0) return;
    try {
      Checkpoint((folder_.path() / "ckpt").string()).verify();
    } catch (const InputError& e) {
      ++tally_.lost;
      FAIL_CHECK(e.what());
    }
  }

  // A chain of runs that were cut short is, to the last bit, one run.
  void compare_with_straight() {
    const std::int64_t steps = newest();
    std::vector<std::string> words = run_words("host", steps - 1);
    words[12] = "straight";
    words.resize(13);
    const pid_t child = start(false, words);
    const Ended e = folder_.wait(child);
    CHECK_MESSAGE(e.exit == 0, e.said);
    const std::string file = step_folder_name(steps) + "/" + kManifestName;  // it holds the checksums of all the rest
    const bool equal = text_of(folder_.path() / "ckpt" / file) == text_of(folder_.path() / "straight" / file);
    CHECK(equal);
    if (!equal) ++tally_.lost;
    ++tally_.straight;
    fs::remove_all(folder_.path() / "ckpt");
    fs::remove_all(folder_.path() / "straight");
  }

  std::mt19937_64 random_;
  const std::vector<std::string> mpirun_;
  RunFolder folder_;
  Tally tally_;
  std::string mark_;
  mutable std::set<pid_t> seen_;  // processes of this run
  int runs_ = 0;
  bool in_start_up_ = false;
  int alone_ = 0;  // looks in a row that found the launcher alone
  Clock::time_point looked_;
  Clock::time_point struck_;
};

}  // namespace

TEST_CASE("runs that are killed, stopped and interrupted: none hangs, loses a checkpoint or leaves a rank unnamed") {
  const auto seconds = from_environment("FSDP_SOAK_SECONDS", 60);
  const auto seed = static_cast<std::uint64_t>(from_environment("FSDP_SOAK_SEED", 1));
  const auto until = Clock::now() + std::chrono::seconds(seconds);
  Soak soak(seed);
  int runs = 0;
  for (; Clock::now() < until; ++runs) {
    CAPTURE(runs);
    soak.one();
  }
  const Tally& t = soak.tally();
  MESSAGE(runs << " runs of seed " << seed << ": " << t.host_kills << " kills on host, " << t.mpi_kills
               << " under mpirun; " << t.rank_faults << " rank faults, " << t.start_up << " of them in start-up; "
               << t.asked << " asked to stop, " << t.asked_again << " of them twice (lost by mpirun); " << t.straight
               << " chains equal to a straight run; hangs " << t.hangs << ", lost checkpoints " << t.lost
               << ", unnamed ranks " << t.unnamed << ", processes left " << t.left
               << ", of mpirun after all ranks had ended " << t.launcher_hangs << "; slowest end " << t.slowest
               << " s");
  CHECK(runs > 3);
}
