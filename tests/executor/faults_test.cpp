// When a rank fails, every rank ends, soon, with a message that names the rank and the operation.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "executor/backend.h"
#include "executor/ranks/instruments/poison.h"
#include "executor/ranks/signals.h"
#include "models/input/error.h"

using namespace fsdp;

namespace {

constexpr Stream D = Stream::compute, G = Stream::all_gather;

struct Outcome {
  std::int64_t rank = -1;
  std::int32_t op = -1;
  std::string what;
  double seconds = 0;
  [[nodiscard]] bool says(const std::string& words) const { return what.find(words) != std::string::npos; }
};

// Two ranks that exchange all-gathers without end until `fault(device, op)` does something else.
template <class Fault>
Outcome outcome(Fault fault, double watchdog = 0.4) {
  const auto backend = make_host_backend({1, 2}, {watchdog});
  Outcome o;
  const auto begin = std::chrono::steady_clock::now();
  try {
    backend->run([&](Device& dev) {
      dev.reserve_arena(4096);
      dev.begin_step();
      const BufferView b = dev.allocate(G, 0, 256);
      dev.launch(0, G, {}, [b] { std::memset(b.data, 0, 256); });
      for (std::int32_t op = 1; op < 100; ++op) {
        if (fault(dev, op, b)) continue;
        dev.all_gather(op, G, Communicator::shard, {}, b, 4, DType::f32);
      }
    });
  } catch (const RankFailure& e) {
    o = {e.rank(), e.op(), e.what(), 0};
  }
  o.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return o;
}

}  // namespace

// A run of its own in a process of its own: what it says is its exit. First in this file: later ones leave threads
// behind, and a process with threads does not fork well.
int interrupted_run(int signal) {
  const pid_t child = ::fork();
  if (child == 0) {
    note_signals();
    const Outcome o = outcome(
        [=](Device& d, std::int32_t op, BufferView) {
          if (d.rank() == 1 && op == 20) ::raise(signal);
          return d.rank() == 1 && op >= 20;  // rank 0 is inside a collective that nobody joins
        },
        600);
    const bool told = o.says("interrupted by " + signal_name(signal) + "; rank 0 ");
    ::_exit(told ? 7 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_CASE("a signal ends ranks that are inside collectives, and says where they were") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) CHECK(interrupted_run(signal) == 7);
}

TEST_CASE("a kernel that throws") {
  const Outcome o = outcome(
      [](Device& d, std::int32_t op, BufferView) {
        if (d.rank() != 1 || op != 30) return false;
        d.launch(op, D, {}, [] { throw std::runtime_error("the disk is on fire"); });
        return true;
      },
      60);
  CHECK(o.rank == 1);
  CHECK(o.op == 30);
  CHECK(o.says("rank 1, operation 30"));
  CHECK(o.says("the disk is on fire"));
  CHECK(o.seconds < 5);
}

TEST_CASE("a kernel that throws something that is no exception") {
  const Outcome o = outcome(
      [](Device& d, std::int32_t op, BufferView) {
        if (d.rank() == 0 && op == 3) d.launch(200, D, {}, [] { throw 7; });
        return false;
      },
      60);
  CHECK(o.rank == 0);
  CHECK(o.op == 200);
  CHECK(o.seconds < 5);
}

TEST_CASE("a host that throws") {
  const Outcome o = outcome(
      [](Device& d, std::int32_t op, BufferView) -> bool {
        if (d.rank() == 0 && op == 50) throw InputError("here", "no more");
        return false;
      },
      60);
  CHECK(o.rank == 0);
  CHECK(o.says("after issuing operation 49"));
  CHECK(o.says("no more"));
  CHECK(o.seconds < 5);
}

TEST_CASE("a kernel or a host that runs out of memory says so") {
  const Outcome in_kernel = outcome(
      [](Device& d, std::int32_t op, BufferView) {
        if (d.rank() != 1 || op != 12) return false;
        d.launch(op, D, {}, [] { throw std::bad_alloc(); });
        return true;
      },
      60);
  CHECK(in_kernel.rank == 1);
  CHECK(in_kernel.op == 12);
  CHECK(in_kernel.says("rank 1, operation 12 on stream"));
  CHECK(in_kernel.says("out of memory on this machine"));
  const Outcome in_host = outcome(
      [](Device& d, std::int32_t op, BufferView) -> bool {
        if (d.rank() == 0 && op == 7) throw std::bad_alloc();
        return false;
      },
      60);
  CHECK(in_host.rank == 0);
  CHECK(in_host.says("rank 0, after issuing operation 6: out of memory on this machine"));
  CHECK(in_host.seconds < 5);
}

TEST_CASE("an arena that this machine cannot give") {
  const Outcome o = outcome(
      [](Device& d, std::int32_t op, BufferView) {
        if (d.rank() == 1 && op == 5) d.reserve_arena(std::int64_t{1} << 60, Memory::host);
        return false;
      },
      60);
  CHECK(o.rank == 1);
  CHECK_MESSAGE(o.says("this machine has no 1048576 TiB for the arena"), o.what);
  CHECK(o.seconds < 5);
}

TEST_CASE("ranks that disagree about a collective: kind, elements, type") {
  const auto different = [](auto issue, const char* words) {
    const Outcome o = outcome(
        [&](Device& d, std::int32_t op, BufferView b) {
          if (d.rank() != 1 || op != 10) return false;
          issue(d, op, b);
          return true;
        },
        60);
    CHECK(o.says("ranks disagree"));
    CHECK(o.says("rank 0 issued all_gather of 4 fp32 elements (operation 10)"));
    CHECK_MESSAGE(o.says(words), o.what);
    CHECK(o.seconds < 5);
  };
  different(
      [](Device& d, std::int32_t op, BufferView b) { d.all_gather(op, G, Communicator::shard, {}, b, 5, DType::f32); },
      "rank 1 issued all_gather of 5 fp32");
  different(
      [](Device& d, std::int32_t op, BufferView b) { d.all_gather(op, G, Communicator::shard, {}, b, 4, DType::bf16); },
      "rank 1 issued all_gather of 4 bf16");
  different([](Device& d, std::int32_t op,
               BufferView b) { d.all_reduce(op, G, Communicator::shard, {}, b, 4, DType::f32, Reduction::sum); },
            "rank 1 issued all_reduce of 4 fp32");
}

TEST_CASE("a rank that leaves out a collective ends the run through the watchdog") {
  const Outcome o = outcome([](Device& d, std::int32_t op, BufferView) { return d.rank() == 1 && op == 99; });
  CHECK(o.rank == 0);
  CHECK(o.op == 99);
  CHECK(o.says("for rank 1"));
  CHECK(o.seconds < 5);
}

TEST_CASE("ranks that all wait will wait for ever: the watchdog's time is not waited out") {
  const Outcome o = outcome([](Device& d, std::int32_t op, BufferView) { return d.rank() == 1 && op == 99; }, 600);
  CHECK(o.rank == 0);
  CHECK(o.op == 99);
  CHECK_MESSAGE(o.says("rank 0 waits in collective operation 99"), o.what);
  CHECK_MESSAGE(o.says("for rank 1; rank 1 has ended after operation 98"), o.what);
  CHECK(o.seconds < 10);
}

TEST_CASE("a rank that does not come to an exchange") {
  const Outcome o = outcome(
      [](Device& d, std::int32_t op, BufferView) {
        if (d.rank() == 0 && op == 40) (void)d.exchange("hello");
        return false;
      },
      600);
  CHECK(!o.what.empty());
  CHECK(o.says("no rank has made progress"));
  CHECK(o.seconds < 10);
}

TEST_CASE("a host that stops issuing is named, not those that wait for it") {
  const Outcome o = outcome([](Device& d, std::int32_t op, BufferView) {
    if (d.rank() == 1 && op == 20) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    return false;
  });
  CHECK(o.rank == 1);
  CHECK(o.says("issues nothing after operation 19"));
  CHECK(o.seconds < 8);
}

TEST_CASE("a kernel that does not come back is named and left behind") {
  const Outcome o = outcome([](Device& d, std::int32_t op, BufferView) {
    if (d.rank() == 1 && op == 20) d.launch(200, D, {}, [] { std::this_thread::sleep_for(std::chrono::seconds(8)); });
    return false;
  });
  CHECK(o.rank == 1);
  CHECK(o.op == 200);
  CHECK(o.says("is inside operation 200"));
  CHECK(o.seconds < 7);  // 0.4 s watchdog + 4 s grace
}

TEST_CASE("a kernel that is slow, while the others wait for it, has the watchdog's time") {
  const Outcome o = outcome(
      [](Device& d, std::int32_t op, BufferView) {
        if (d.rank() != 1 || op != 20) return false;
        d.launch(200, G, {}, [] { std::this_thread::sleep_for(std::chrono::seconds(4)); });
        return false;
      },
      600);
  CHECK_MESSAGE(o.what.empty(), o.what);
}

TEST_CASE("freed memory is poisoned in the time of its pool's stream, not of the host") {
  if (!host::poison_works()) {
    MESSAGE("skipped: poisoning needs AddressSanitizer");
    return;
  }
  int wrong = 0;
  make_host_backend({1, 1})->run([&](Device& dev) {
    dev.reserve_arena(4096);
    dev.begin_step();
    const BufferView a = dev.allocate(D, 0, 64);
    dev.launch(0, D, {}, [a, &wrong] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the host has released it by now
      wrong += host::is_poisoned(a.data) || host::is_poisoned(a.data + 63);
      wrong += !host::is_poisoned(a.data + 64);  // never handed out
    });
    dev.release(D, a);
    dev.launch(1, D, {}, [a, &wrong] { wrong += !host::is_poisoned(a.data) || !host::is_poisoned(a.data + 63); });
    const BufferView again = dev.allocate(D, 0, 32);
    dev.launch(2, D, {},
               [again, &wrong] { wrong += host::is_poisoned(again.data + 31) || !host::is_poisoned(again.data + 32); });
    dev.synchronize();
  });
  CHECK(wrong == 0);
}
