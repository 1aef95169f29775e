// Collectives of the host backend beside the same threads moving the same bytes by plain loops, turn by turn in one
// run: compare the ratio, not the times. All-gather: each of W ranks copies the slots of the others, (W-1)/W of the
// buffer; reduce-scatter: it adds its slot of each other rank into one of its own, a += b. On a machine that does other
// work, processor time tells more. Then what a small collective takes: issued alone and waited for, and issued many at
// once.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <numeric>
#include <vector>

#include "executor/backend.h"

namespace {

using namespace fsdp;

constexpr std::int64_t kBytes = 64 << 20, kElements = kBytes / 4;
constexpr int kTurns = 31;

double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void add(float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) a[i] += b[i];
}

struct Samples {
  std::vector<double> seconds, processor_seconds;
};
struct Times {
  Samples copy, gather, add, scatter;
};

// Both sides on the same threads, from the moment that all ranks issue it until all have waited for it.
class Turns {
 public:
  Turns(Device& device, std::barrier<>& together) : device_(device), together_(together) {}
  template <class Issue>
  void take(Samples& into, Issue issue) {
    device_.begin_step();
    together_.arrive_and_wait();
    const double begin = now(), busy = processor_seconds();
    issue();
    device_.synchronize();
    together_.arrive_and_wait();
    if (device_.rank() != 0) return;
    into.seconds.push_back(now() - begin);
    into.processor_seconds.push_back(processor_seconds() - busy);
  }

 private:
  Device& device_;
  std::barrier<>& together_;
};

void large(std::int64_t ranks) {
  constexpr Stream stream = Stream::all_gather;
  std::barrier together(ranks);
  std::vector<float*> buffers(static_cast<std::size_t>(ranks));
  Times times;
  make_host_backend({1, ranks})->run([&](Device& dev) {
    const std::int64_t slot = kElements / ranks, me = dev.rank();
    dev.reserve_arena(2 * kBytes);
    const BufferView all = dev.allocate(stream, 0, kBytes), out = dev.allocate(stream, kBytes, slot * 4);
    auto *mine = reinterpret_cast<float*>(all.data), *sum = reinterpret_cast<float*>(out.data);
    std::fill_n(mine, kElements, 1e-3f);
    std::fill_n(sum, slot, 0.0f);
    buffers[static_cast<std::size_t>(me)] = mine;
    const auto others = [=, &buffers](auto work) {
      for (std::int64_t i = 1; i < ranks; ++i)
        work((me + i) % ranks, buffers[static_cast<std::size_t>((me + i) % ranks)]);
    };
    Turns turns(dev, together);
    for (int i = 0; i < kTurns; ++i) {
      turns.take(times.copy, [&] {
        dev.launch(0, stream, {}, [=] {
          others([=](std::int64_t r, const float* theirs) {
            std::memcpy(mine + r * slot, theirs + r * slot, static_cast<std::size_t>(4 * slot));
          });
        });
      });
      turns.take(times.gather, [&] { dev.all_gather(0, stream, Communicator::shard, {}, all, slot, DType::f32); });
      turns.take(times.add, [&] {
        dev.launch(0, stream, {},
                   [=] { others([=](std::int64_t, const float* theirs) { add(sum, theirs + me * slot, slot); }); });
      });
      turns.take(times.scatter, [&] {
        dev.reduce_scatter(0, stream, Communicator::shard, {}, all, out, slot, DType::f32, Reduction::sum);
      });
    }
  });
  const auto line = [&](const char* what, const Samples& plain, const Samples& collective) {
    const double p = median(plain.seconds), c = median(collective.seconds);
    fmt::print(
        "{:<15} 64 MiB  {} ranks  plain {:6.2f} ms  collective {:6.2f} ms  {:3.0f}% of the plain speed, {:3.0f}% by "
        "processor time\n",
        what, ranks, p * 1e3, c * 1e3, 100 * p / c,
        100 * median(plain.processor_seconds) / median(collective.processor_seconds));
  };
  line("all-gather", times.copy, times.gather);
  line("reduce-scatter", times.add, times.scatter);
}

void small(std::int64_t ranks) {
  constexpr std::int32_t many = 500;
  std::vector<double> alone, issued_at_once;
  make_host_backend({1, ranks})->run([&](Device& dev) {
    dev.reserve_arena(1 << 16);
    const BufferView a = dev.allocate(Stream::all_gather, 0, 4096);
    for (int i = 0; i < kTurns; ++i) {
      dev.begin_step();
      std::int32_t op = 0;
      dev.launch(op++, Stream::all_gather, {}, [a] { std::memset(a.data, 0, 4096); });
      const auto gather = [&] {
        dev.all_gather(op++, Stream::all_gather, Communicator::shard, {}, a, 1024 / ranks, DType::f32);
      };
      dev.synchronize();
      double begin = now();
      for (std::int32_t k = 0; k < many; ++k) {
        gather();
        dev.synchronize();
      }
      if (dev.rank() == 0) alone.push_back((now() - begin) / many);
      begin = now();
      for (std::int32_t k = 0; k < many; ++k) gather();
      dev.synchronize();
      if (dev.rank() == 0) issued_at_once.push_back((now() - begin) / many);
    }
  });
  fmt::print(
      "all-gather      4 KiB   {} ranks  {:5.1f} us issued alone and waited for, {:5.1f} us each of {} issued at "
      "once\n",
      ranks, median(alone) * 1e6, median(issued_at_once) * 1e6, many);
}

}  // namespace

int main() {
  for (const std::int64_t ranks : {2, 4}) large(ranks);
  for (const std::int64_t ranks : {2, 4}) small(ranks);
}
