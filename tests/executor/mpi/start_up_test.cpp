// When a rank is killed, stopped or told to end while a launch starts, before MPI has connected its processes, every
// process of the launch ends, soon, with one message that names the rank. The test starts mpirun with itself.
#include <fmt/format.h>
#include <sys/inotify.h>

#include <array>
#include <cstdio>
#include <regex>
#include <string_view>

#include "executor/mpi/start_up.h"
#include "executor/mpi_backend.h"
#include "tests/support/mpi_launch.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Another command of this program in the environment of this rank, started with the same words.
pid_t start_another_command() {
  const pid_t child = ::fork();
  if (child != 0) return child;
  std::vector<std::string> words;
  std::istringstream line(read_text("/proc/self/cmdline"));
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& w : words) arguments.push_back(w.data());
  arguments.push_back(nullptr);
  ::setenv("FSDP_TEST_MOMENT", "another command", 1);
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

// 0: the ranks of this machine have found each other, within ten seconds.
int find_others() {
  mpi::StartUp start_up;
  for (const auto limit = Clock::now() + 10s; !start_up.found_all(); std::this_thread::sleep_for(10ms))
    if (start_up.look() || Clock::now() > limit) return 3;
  std::this_thread::sleep_for(1s);  // the others look too
  return 0;
}

// Returns when the folder of the status board has been made: the kernel says so, however soon it goes again.
void wait_for_board(int notices) {
  alignas(inotify_event) std::array<char, 4096> text{};
  for (ssize_t n = 0; (n = ::read(notices, text.data(), text.size())) > 0;) {
    const char* at = text.data();
    while (at < text.data() + n) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      if (event->len > 0 && std::string_view(event->name).starts_with("fsdp-plan-")) return;
      at += sizeof(inotify_event) + event->len;
    }
  }
}

// "start": before anything else; "start 1234": so many microseconds later, while others join; "board": as soon as the
// folder of the status board is there.
int one_rank(const std::string& fault, const std::string& moment, const std::string& victim) {
  const bool mine = victim == from_environment("OMPI_COMM_WORLD_RANK") || victim == from_environment("PMI_RANK");
  if (moment == "another command") return std::this_thread::sleep_for(300ms), 0;
  if (moment == "alone") return find_others();
  if (mine && fault == "another command") {
    const pid_t child = start_another_command();
    if (moment == "before") ::waitpid(child, nullptr, 0);
    if (moment == "beside") std::this_thread::sleep_for(250ms);  // it ends while this one joins
  }
  if (mine && moment == "start") misbehave(fault);
  if (mine && moment.starts_with("start "))
    std::thread([fault, us = std::stol(moment.substr(6))] {
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      misbehave(fault);
    }).detach();
  if (mine && moment == "board") {
    const int notices = ::inotify_init1(IN_CLOEXEC);
    (void)::inotify_add_watch(notices, from_environment("TMPDIR").c_str(), IN_CREATE);
    std::thread([fault, notices] {
      wait_for_board(notices);
      misbehave(fault);
    }).detach();
  }
  try {
    (void)join_launch();
    std::this_thread::sleep_for(3s);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fsdp-plan: %s\n", e.what());
    return 3;
  }
  return 0;
}

void check_start(const std::string& fault, const std::vector<std::string>& words,
                 const std::vector<std::string>& moments) {
  if (!can_launch()) return;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const std::int64_t victim = i % 2 == 0 ? 2 : 0;
    CAPTURE(moments[i]);
    CAPTURE(victim);
    const Outcome o = launch(4, fault, moments[i], victim);
    check_ends(o, words);
    if (o.sentences.empty()) continue;
    const std::regex named(fmt::format(R"(\branks? ([0-9]+, )*{}\b)", victim));  // "rank 2", "ranks 1, 2"
    CHECK_MESSAGE(std::regex_search(o.sentences[0], named), o.sentences[0]);
  }
}

}  // namespace

TEST_CASE("one rank of a launch" * doctest::skip()) {
  std::exit(one_rank(from_environment("FSDP_TEST_FAULT"), from_environment("FSDP_TEST_MOMENT"),
                     from_environment("FSDP_TEST_VICTIM")));
}

TEST_CASE("a rank may run another command of the program before it joins, or beside it") {
  if (!can_launch()) return;
  for (const char* moment : {"before", "beside"}) {
    CAPTURE(moment);
    for (const std::int64_t ranks : {1, 3}) {
      CAPTURE(ranks);
      check_ends_well(launch(ranks, "another command", moment, ranks - 1));
    }
  }
}

TEST_CASE("ranks know when they have found all of their machine, and look no further") {
  if (can_launch()) check_ends_well(launch(3, "", "alone", 0));
}

TEST_CASE("a rank that is stopped while the launch starts is named within seconds") {
  check_start("stop", {"is stopped"}, {"start", "start", "start 1000", "start 10000", "start 40000", "start 100000"});
}

TEST_CASE("a rank that is killed while the launch starts is named") {
  check_start("kill", {}, {"start", "start", "start 1000", "start 10000", "start 40000", "start 100000"});
}

TEST_CASE("a rank that is stopped or killed while the status board is made leaves no file") {
  check_start("stop", {"is stopped"}, {"board", "board"});
  check_start("kill", {}, {"board", "board", "board", "board"});
}

TEST_CASE("a rank that gets SIGTERM while the launch starts is named") {
  check_start("terminate", {}, {"start", "start", "start 2000", "start 20000", "start 60000", "start 200000"});
}
