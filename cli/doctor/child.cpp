#include "cli/doctor/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "models/input/error.h"

namespace fsdp::cli {
namespace {

constexpr std::size_t kMostText = std::size_t{1} << 20;
constexpr double kToEnd = 3;       // seconds after SIGTERM: mpirun ends its ranks first
constexpr double kToBeKilled = 1;  // a process inside a broken driver may not even die

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Those that end a program that does not handle them. What this process ignores (nohup) ends nothing; it would be
// pending all the same once it is blocked.
std::vector<int> ending_signals() {
  std::vector<int> signals;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) signals.push_back(signal);
  }
  return signals;
}

bool signal_waits() {
  sigset_t pending;
  sigset_t blocked;
  if (::sigpending(&pending) != 0 || ::sigprocmask(SIG_BLOCK, nullptr, &blocked) != 0) return false;
  for (const int signal : ending_signals())
    if (sigismember(&pending, signal) == 1 && sigismember(&blocked, signal) == 1) return true;
  return false;
}

struct Pipe {
  Descriptor read, write;
};
Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw MachineError(std::string("pipe: ") + std::strerror(errno));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

// In the new process: nothing here may allocate.
[[noreturn]] void become(char* const* words, int out, int err, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing < 0 || ::dup2(nothing, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(127);
  std::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv(words[0], words);
  ::_exit(127);
}

}  // namespace

SignalsWait::SignalsWait() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : ending_signals()) sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, &before_);
}
SignalsWait::~SignalsWait() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

std::string ChildEnd::how() const {
  if (!in_time) return fmt::format("did not end within {:.3g} s", seconds);
  if (signal != 0) return fmt::format("was ended by signal {} ({})", signal, ::strsignal(signal));
  if (exit < 0) return "ended, but its exit code is not known";
  return exit == 127 ? "could not be started" : fmt::format("ended with exit code {}", exit);
}

Child::Child(const std::vector<std::string>& words) : begin_(std::chrono::steady_clock::now()) {
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  Pipe out = make_pipe(), err = make_pipe();
  std::signal(SIGCHLD,
              SIG_DFL);  // where it is ignored, as a parent may leave it, the kernel forgets how children ended
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(argv.data(), out.write.get(), err.write.get(), parent);
  if (pid_ < 0) throw MachineError(std::string("no further process: ") + std::strerror(errno));
  ::setpgid(pid_, pid_);  // whichever of the two comes first
  pipes_[0] = std::move(out.read);
  pipes_[1] = std::move(err.read);
  for (const Descriptor& pipe : pipes_) ::fcntl(pipe.get(), F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  if (pid_ > 0) end();
}

void Child::read_some(int milliseconds) {
  std::array<pollfd, 2> wanted{};
  for (std::size_t i = 0; i < 2; ++i) wanted[i] = {pipes_[i].get(), POLLIN, 0};
  if (!pipes_[0].is_open() && !pipes_[1].is_open()) {
    (void)::poll(nullptr, 0, milliseconds);
    return;
  }
  if (::poll(wanted.data(), wanted.size(), milliseconds) <= 0) return;
  std::array<char, 65536> block{};
  for (std::size_t i = 0; i < 2; ++i) {
    if (wanted[i].revents == 0) continue;
    const ssize_t n = ::read(pipes_[i].get(), block.data(), block.size());
    if (n > 0) {
      texts_[i].append(block.data(), std::min(static_cast<std::size_t>(n), kMostText - texts_[i].size()));
    } else if (n == 0 || errno != EAGAIN) {
      pipes_[i].close();
    }
  }
}

Child::State Child::state() const {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return errno == ECHILD ? State::gone : State::runs;
  return info.si_pid == pid_ ? State::ended : State::runs;
}
bool Child::has_ended() const { return state() != State::runs; }

void Child::signal_group(int signal) const {
  if (state() != State::gone) ::kill(-pid_, signal);  // of what is gone the number may be another's by now
}

bool Child::ends_within(double seconds, bool interruptible) {
  for (const auto begin = std::chrono::steady_clock::now(); !has_ended();) {
    if (interruptible && signal_waits()) throw MachineError("interrupted by a signal");
    if (seconds_since(begin) > seconds) return false;
    read_some(10);
  }
  return true;
}

// What it started and left behind ends, too.
void Child::end() {
  if (!has_ended()) signal_group(SIGTERM);
  (void)ends_within(kToEnd, false);
  signal_group(SIGKILL);
  if (ends_within(kToBeKilled, false)) ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

ChildEnd Child::finish(double seconds) {
  ChildEnd result;
  result.in_time = ends_within(std::max(0.0, seconds - seconds_since(begin_)), true);
  result.seconds = result.in_time ? seconds_since(begin_) : seconds;
  siginfo_t info{};
  if (result.in_time && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
    if (info.si_code == CLD_EXITED) result.exit = info.si_status;
    else result.signal = info.si_status;
  }
  for (int i = 0; i < 64; ++i) read_some(0);  // what is in the pipes
  end();
  result.out = std::move(texts_[0]);
  result.err = std::move(texts_[1]);
  return result;
}

bool path_is_empty() {
  const char* path = std::getenv("PATH");
  return path == nullptr || *path == '\0';
}

std::optional<std::string> find_program(const std::string& name) {
  const auto runs = [](const std::string& path) {
    std::error_code error;
    return std::filesystem::is_regular_file(path, error) && ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) return runs(name) ? std::optional(name) : std::nullopt;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const std::string file = (folder.empty() ? "." : folder) + "/" + name; runs(file)) return file;
  return std::nullopt;
}

}  // namespace fsdp::cli
