// Collectives of the host backend beside threads that move the same bytes by plain loops, turn by turn in one run: compare the
// ratio, not the times. All-gather: each of W threads copies (W-1)/W of the buffer; reduce-scatter: each adds (W-1)/W of it.
// Then what a small collective takes: issued alone and waited for, and issued many at once.
#include <fmt/format.h>

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
constexpr int kTurns = 15;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double best(const std::vector<double>& x) { return *std::min_element(x.begin(), x.end()); }
double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
  return x[x.size() / 2];
}

void add(float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) a[i] += b[i];
}

struct Times {
  std::vector<double> gather, copy, scatter, add;
};

void large(std::int64_t ranks) {
  std::barrier together(ranks);
  Times times;
  make_host_backend({1, ranks})->run([&](Device& dev) {
    const std::int64_t slot = kElements / ranks, moved = (ranks - 1) * slot;
    dev.reserve_arena(3 * kBytes);
    const BufferView a = dev.allocate(Stream::all_gather, 0, kBytes), b = dev.allocate(Stream::all_gather, kBytes, kBytes),
                     out = dev.allocate(Stream::all_gather, 2 * kBytes, slot * 4);
    auto *fa = reinterpret_cast<float*>(a.data), *fb = reinterpret_cast<float*>(b.data);
    std::fill_n(fa, kElements, 1.0f);
    std::fill_n(fb, kElements, 1e-3f);
    std::memset(out.data, 0, static_cast<std::size_t>(out.bytes));
    // Both sides on the same threads, from the moment that all ranks issue it until all have waited for it.
    const auto turn = [&](std::vector<double>& into, auto issue) {
      dev.begin_step();
      together.arrive_and_wait();
      const double begin = now();
      issue();
      dev.synchronize();
      together.arrive_and_wait();
      if (dev.rank() == 0) into.push_back(now() - begin);
    };
    const Stream stream = Stream::all_gather;
    for (int i = 0; i < kTurns; ++i) {
      turn(times.copy, [&] { dev.launch(0, stream, {}, [=] { std::memcpy(fa, fb, static_cast<std::size_t>(4 * moved)); }); });
      turn(times.gather, [&] { dev.all_gather(0, stream, Communicator::shard, {}, a, slot, DType::f32); });
      turn(times.add, [&] { dev.launch(0, stream, {}, [=] { add(fa, fb, moved); }); });
      turn(times.scatter, [&] { dev.reduce_scatter(0, stream, Communicator::shard, {}, b, out, slot, DType::f32, Reduction::sum); });
    }
  });
  const auto line = [&](const char* what, const std::vector<double>& plain, const std::vector<double>& collective) {
    const double p = median(plain), c = median(collective);
    fmt::print("{:<15} 64 MiB  {} ranks  plain {:6.2f} ms  collective {:6.2f} ms  {:3.0f}% of the plain speed (of the best turns: {:.0f}%)\n",
               what, ranks, p * 1e3, c * 1e3, 100 * p / c, 100 * best(plain) / best(collective));
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
      const auto gather = [&] { dev.all_gather(op++, Stream::all_gather, Communicator::shard, {}, a, 1024 / ranks, DType::f32); };
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
  fmt::print("all-gather      4 KiB   {} ranks  {:5.1f} us issued alone and waited for, {:5.1f} us each of {} issued at once\n", ranks,
             median(alone) * 1e6, median(issued_at_once) * 1e6, many);
}

}  // namespace

int main() {
  for (const std::int64_t ranks : {2, 4}) large(ranks);
  for (const std::int64_t ranks : {2, 4}) small(ranks);
}
