// Processes that `doctor` tries, where the parent left odd signals, or where descriptors run out.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "cli/doctor/child.h"
#include "models/input/error.h"

using fsdp::cli::Child;
using fsdp::cli::ChildEnd;
using fsdp::cli::SignalsWait;

namespace {

constexpr double kLimit = 60;  // seconds: on a busy machine

std::vector<std::string> shell(const std::string& text) { return {"/bin/sh", "-c", text}; }

class Disposition {  // of a signal, for a while
 public:
  Disposition(int signal, void (*handler)(int)) : signal_(signal), before_(std::signal(signal, handler)) {}
  ~Disposition() { std::signal(signal_, before_); }
  Disposition(const Disposition&) = delete;
  Disposition& operator=(const Disposition&) = delete;

 private:
  int signal_;
  void (*before_)(int);
};

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("an ignored signal does not interrupt, and one that is not does") {
  const Disposition hup(SIGHUP, SIG_IGN);
  const Disposition term(SIGTERM, [](int) {});
  const SignalsWait signals;
  Child first(shell("sleep 1; exit 7"));
  REQUIRE(::kill(::getpid(), SIGHUP) == 0);
  CHECK(first.finish(kLimit).exit == 7);
  Child second(shell("sleep 600"));
  REQUIRE(::kill(::getpid(), SIGTERM) == 0);
  CHECK_THROWS_AS((void)second.finish(kLimit), fsdp::MachineError);
}

TEST_CASE("a parent that ignored SIGCHLD hides no end") {
  const Disposition ignored(SIGCHLD, SIG_IGN);
  Child child(shell("exit 7"));
  const ChildEnd end = child.finish(kLimit);
  CHECK(end.in_time);
  CHECK(end.exit == 7);
}

TEST_CASE("a child that somebody else waited for has ended, and its number is not signalled") {
  const auto begin = std::chrono::steady_clock::now();
  Child child(shell("sleep 600 & exit 7"));
  const pid_t group = ::waitpid(-1, nullptr, 0);
  REQUIRE(group > 0);
  const ChildEnd end = child.finish(kLimit);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::duration<double>(kLimit));
  CHECK(end.in_time);
  CHECK_FALSE(end.succeeded());
  CHECK(end.how() == "ended, but its exit code is not known");
  CHECK(::kill(-group, SIGKILL) == 0);  // by us: the one that sleeps is there still
}

TEST_CASE("a child that lacks descriptors leaves none open") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const std::ptrdiff_t open = open_descriptors();
  const int next = ::dup(0);  // numbers below it are taken
  REQUIRE(next >= 0);
  ::close(next);
  for (const int more : {0, 1, 2, 3}) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next + more);  // one pipe at most
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    CHECK_THROWS_AS(Child(shell("exit 0")), fsdp::MachineError);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(open_descriptors() == open);
  }
}
