// Streams, events, the order of communicators, memory, instruments, texts.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/executor/conformance/conformance.h"

namespace fsdp::conformance {
namespace {

void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

struct GatherThenReduce {
  OperationRecord gather, reduce;
};
// An all-gather whose stream is busy with `before`, then a reduce-scatter over `reduce_over` whose stream is free and
// goes on with `after`.
GatherThenReduce gather_then_reduce(Device& dev, std::int64_t shard, Communicator reduce_over,
                                    const std::function<void()>& before, const std::function<void()>& after) {
  dev.reserve_arena(4096);
  dev.begin_step();
  Pieces pieces(dev);
  const BufferView a = pieces.take(G, 32 * shard), in = pieces.take(R, 32 * shard), out = pieces.take(R, 32);
  dev.launch(0, G, {}, [&, a] {
    std::memset(a.data, 0, static_cast<std::size_t>(a.bytes));
    before();
  });
  dev.all_gather(1, G, Communicator::shard, {}, a, 8, DType::f32);
  dev.launch(2, R, {}, [=] { std::memset(in.data, 0, static_cast<std::size_t>(in.bytes)); });
  dev.reduce_scatter(3, R, reduce_over, {}, in, out, 8, DType::f32, Reduction::sum);
  dev.launch(4, R, {}, [&] { after(); });
  dev.synchronize();
  GatherThenReduce result;
  for (const OperationRecord& r : dev.records()) {
    if (r.op == 1) result.gather = r;
    if (r.op == 3) result.reduce = r;
  }
  return result;
}

TEST_CASE("streams run in order, events order streams, and records tell the order of starts") {
  on_ranks(mesh_like({1, 2}), [](Device& dev, Checks& checks) {
    for (int step = 0; step < 3; ++step) {
      dev.begin_step();
      std::vector<int> seen;  // written by D and G in turns; only the events keep this free of races
      std::int32_t op = 0;
      for (int i = 0; i < 200; ++i, ++op) {
        const std::int32_t previous[] = {op - 1};
        dev.launch(op, i % 2 == 0 ? D : G, op == 0 ? std::span<const std::int32_t>{} : previous, [&seen, i] {
          if (seen.size() < 200) seen.push_back(i);
        });
      }
      dev.wait_host(op - 1);
      checks.expect(seen.size() == 200);
      for (std::size_t i = 0; i < seen.size(); ++i) checks.expect(seen[i] == static_cast<int>(i), "order");
      dev.synchronize();
      const std::vector<OperationRecord> records = dev.records();
      checks.expect(records.size() == 200, "records");
      std::vector<std::int32_t> last(kStreams, -1);
      for (const OperationRecord& r : records) {
        auto& before = last[static_cast<std::size_t>(r.stream)];
        checks.expect(r.op > before && r.start >= 0 && r.end >= r.start, "a record");
        before = r.op;
      }
    }
  });
}

TEST_CASE("events carry data between kernels and collectives of different streams, with delays anywhere") {
  const MeshShape mesh = mesh_like({1, 3});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    const std::int64_t w = mesh.shard, rank = dev.rank();
    dev.reserve_arena(1 << 16);
    Pieces pieces(dev);
    const BufferView gathered = pieces.take(D, 8 * w), sum = pieces.take(R, 8);
    for (int step = 0; step < 12; ++step) {
      dev.begin_step();
      double total = 0;
      const auto late = [=](int who) { return (step + who) % 4 == 0 && step % w == rank ? 3 : 0; };
      dev.launch(0, D, {}, [=] {
        nap(late(0));
        put(DType::f64, gathered.data, rank, static_cast<double>(10 * step + rank));
      });
      const std::int32_t e0[] = {0}, e1[] = {1}, e2[] = {2}, e3[] = {3};
      dev.all_gather(1, G, Communicator::shard, e0, gathered, 1, DType::f64);
      dev.launch(2, R, e1, [=] {
        nap(late(1));
        double s = 0;
        for (std::int64_t i = 0; i < w; ++i) s += get(DType::f64, gathered.data, i);
        put(DType::f64, sum.data, 0, s);
      });
      if (late(2) > 0) nap(3);
      dev.all_reduce(3, A, Communicator::shard, e2, sum, 1, DType::f64, Reduction::sum);
      dev.launch(4, D, e3, [&] { total = get(DType::f64, sum.data, 0); });
      dev.wait_host(4);
      const auto n = static_cast<double>(w);
      checks.expect(total == n * (10 * step * n + n * (n - 1) / 2));
    }
  });
}

// By what has run, not by what was issued, and of one stream whatever another does.
TEST_CASE("an operation has finished when it has run, and not before") {
  on_ranks(mesh_like({1, 2}), [](Device& dev, Checks& checks) {
    for (int step = 0; step < 3; ++step) {
      dev.begin_step();
      std::atomic<bool> go{false};
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      dev.launch(0, G, {}, [] {});
      dev.launch(1, D, {}, [&] {
        while (!go && std::chrono::steady_clock::now() < limit) nap(1);
      });
      dev.launch(2, D, {}, [] {});
      dev.wait_host(0);
      checks.expect(dev.finished(0), "what the host has waited for");
      checks.expect(!dev.finished(1) && !dev.finished(2), "what waits, and what stands behind it");
      go = true;
      while (!dev.finished(2) && std::chrono::steady_clock::now() < limit) nap(1);
      checks.expect(dev.finished(2) && dev.finished(1), "asked again, without waiting");
      dev.synchronize();
      checks.expect(dev.finished(0) && dev.finished(1) && dev.finished(2), "at the end");
    }
  });
}

TEST_CASE("communication proceeds while a kernel computes") {
  const MeshShape mesh = mesh_like({1, 2});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    dev.reserve_arena(4096);
    dev.begin_step();
    Pieces pieces(dev);
    const BufferView b = pieces.take(G, 64 * mesh.replicate * mesh.shard);
    std::atomic<bool> computing{false}, gathered{false}, in_time{false};
    // Runs until the operation after the all-gather has run, which no rank reaches before all ranks are in this kernel.
    dev.launch(0, D, {}, [&] {
      computing = true;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (!gathered && std::chrono::steady_clock::now() < limit) nap(1);
      in_time = gathered.load();
    });
    dev.launch(1, G, {}, [&] {
      while (!computing) nap(1);
      std::memset(b.data, 0, static_cast<std::size_t>(b.bytes));
    });
    dev.all_gather(2, G, Communicator::world, {}, b, 16, DType::f32);
    dev.launch(3, G, {}, [&] { gathered = true; });
    dev.synchronize();
    checks.expect(in_time);
  });
}

TEST_CASE("one communicator runs one collective at a time in issue order, whatever the stream") {
  // The reduce-scatter could begin at once and yet must come second.
  const MeshShape mesh = mesh_like({1, 2});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    const GatherThenReduce r = gather_then_reduce(
        dev, mesh.shard, Communicator::shard, [] { nap(20); }, [] {});
    checks.expect(r.gather.end > 0 && r.reduce.start >= r.gather.end);
  });
}

TEST_CASE("two communicators over the same ranks run at once") {
  // shard_reduce may go first although shard was issued first: the kernel before the all-gather waits for the
  // reduce-scatter.
  const MeshShape mesh = mesh_like({1, 2});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    std::atomic<bool> reduced{false};
    const auto wait = [&] {
      for (int i = 0; i < 30'000 && !reduced; ++i) nap(1);
    };
    const GatherThenReduce r =
        gather_then_reduce(dev, mesh.shard, Communicator::shard_reduce, wait, [&] { reduced = true; });
    checks.expect(r.reduce.end > 0 && r.gather.start >= r.reduce.end);
  });
}

TEST_CASE("many collectives in flight on every stream of a 2 x 4 mesh") {
  const MeshShape mesh = mesh_like({2, 4});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    constexpr int kMany = 300;
    dev.reserve_arena(kMany * 64 * 3);
    dev.begin_step();
    std::vector<BufferView> views;
    for (int i = 0; i < 3 * kMany; ++i) views.push_back(dev.allocate(D, i * 64, 64));
    std::int32_t op = 0;
    dev.launch(op++, D, {}, [&] {
      for (const BufferView v : views)
        for (int k = 0; k < 16; ++k) put(DType::f32, v.data, k, 1);
    });
    const std::int32_t ready[] = {0};
    for (std::size_t i = 0; i < kMany; ++i) {
      dev.all_gather(op++, G, Communicator::shard, ready, views[3 * i], 2, DType::f32);
      dev.all_reduce(op++, A, Communicator::replicate, ready, views[3 * i + 1], 8, DType::f32, Reduction::sum);
      dev.all_reduce(op++, D, Communicator::world, ready, views[3 * i + 2], 8, DType::f32, Reduction::sum);
    }
    dev.synchronize();
    const auto replicate = static_cast<double>(mesh.replicate), all = static_cast<double>(mesh.replicate * mesh.shard);
    for (std::size_t i = 0; i < kMany; ++i)
      checks.expect(get(DType::f32, views[3 * i].data, 7) == 1 &&
                    get(DType::f32, views[3 * i + 1].data, 7) == replicate &&
                    get(DType::f32, views[3 * i + 2].data, 3) == all);
  });
}

// Two models train in turns on the streams of one device: each numbers its operations from a place of its own.
TEST_CASE("two programs share the streams of a device, with operation numbers that do not meet") {
  const MeshShape mesh = mesh_like({1, 2});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    const std::int64_t w = mesh.shard, rank = dev.rank();
    dev.reserve_arena(1 << 16);
    for (int step = 0; step < 2; ++step) {
      dev.begin_step();
      Pieces pieces(dev);
      std::vector<BufferView> gathered;
      constexpr std::int32_t first[] = {0, 1 << 16};
      for (std::int32_t i = 0; i < 40; ++i)
        for (int program = 0; program < 2; ++program) {
          const std::int32_t op = first[program] + 2 * i;
          const BufferView b = pieces.take(D, 8 * w);
          dev.launch(op, D, {}, [=] { put(DType::f64, b.data, rank, static_cast<double>(1000 * rank + op % 1000)); });
          const std::int32_t ready[] = {op};
          dev.all_gather(op + 1, G, Communicator::shard, ready, b, 1, DType::f64);
          gathered.push_back(b);
        }
      dev.synchronize();
      for (std::int32_t i = 0; i < 40; ++i)
        for (std::size_t program = 0; program < 2; ++program)
          for (std::int64_t r = 0; r < w; ++r)
            checks.expect(get(DType::f64, gathered[2 * static_cast<std::size_t>(i) + program].data, r) ==
                          static_cast<double>(1000 * r + (first[program] + 2 * i) % 1000));
      checks.expect(dev.records().size() == 160, "records of both");
      pieces.release_all();
    }
  });
}

TEST_CASE("the allocator counts what is out, and refuses overlap, strangers and what lies outside") {
  on_ranks(mesh_like({1, 1}), [](Device& dev, Checks& checks) {
    const auto refused = [&](const char* what, auto action) {
      try {
        action();
        checks.expect(false, what);
      } catch (const MachineError&) {
        checks.expect(true);
      }
    };
    dev.reserve_arena(4096);
    refused("reserved twice", [&] { dev.reserve_arena(4096); });
    const BufferView a = dev.allocate(D, 0, 100), b = dev.allocate(G, 128, 64), empty = dev.allocate(D, 128, 0);
    checks.expect(dev.allocated_bytes() == 164);
    refused("overlaps the one before", [&] { (void)dev.allocate(D, 64, 8); });
    refused("overlaps two", [&] { (void)dev.allocate(D, 96, 64); });
    refused("covers all", [&] { (void)dev.allocate(D, 0, 4096); });
    refused("beyond the end", [&] { (void)dev.allocate(D, 4095, 2); });
    refused("before the beginning", [&] { (void)dev.allocate(D, -64, 8); });
    refused("overflow", [&] { (void)dev.allocate(D, 64, INT64_MAX); });
    refused("released short", [&] { dev.release(D, {a.data, 99}); });
    refused("released elsewhere", [&] { dev.release(D, {a.data + 1, 99}); });
    dev.release(D, a);
    refused("released twice", [&] { dev.release(D, a); });
    dev.release(D, empty);
    refused("empty released twice", [&] { dev.release(D, empty); });
    checks.expect(dev.allocated_bytes() == 64);
    const BufferView again = dev.allocate(D, 0, 128);
    checks.expect(again.data == a.data && dev.allocated_bytes() == 192);
    dev.release(G, b);
    dev.release(D, again);
    checks.expect(dev.allocated_bytes() == 0);
  });
}

TEST_CASE("host memory is an arena of its own, which kernels and collectives reach") {
  const MeshShape mesh = mesh_like({1, 2});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    const std::int64_t w = mesh.shard, rank = dev.rank();
    dev.reserve_arena(4096);
    dev.reserve_arena(4096, Memory::host);
    const auto refused = [&](auto action) {
      bool threw = false;
      try {
        action();
      } catch (const MachineError&) {
        threw = true;
      }
      checks.expect(threw, "must be refused");
    };
    refused([&] { dev.reserve_arena(64, Memory::host); });
    const BufferView device = dev.allocate(G, 64, 8 * w), host = dev.allocate(D, 64, 8 * w, Memory::host);
    checks.expect(device.data != host.data && dev.allocated_bytes() == 8 * w, "counts device memory alone");
    refused([&] { (void)dev.allocate(G, 64, 8, Memory::host); });
    refused([&] { (void)dev.allocate(G, 4096, 8, Memory::host); });
    dev.begin_step();
    dev.launch(0, D, {}, [=] { put(DType::f64, host.data, rank, 100.0 + static_cast<double>(rank)); });
    const std::int32_t e0[] = {0}, e1[] = {1}, e2[] = {2};
    dev.launch(1, G, e0, [=] { std::memcpy(device.data + 8 * rank, host.data + 8 * rank, 8); });
    dev.all_gather(2, G, Communicator::shard, e1, device, 1, DType::f64);
    dev.all_gather(3, G, Communicator::shard, e2, host, 1, DType::f64);
    dev.synchronize();
    for (std::int64_t i = 0; i < w; ++i)
      for (const BufferView b : {device, host})
        checks.expect(get(DType::f64, b.data, i) == 100.0 + static_cast<double>(i));
    dev.release(D, host);
    refused([&] { dev.release(D, host); });
    checks.expect(dev.allocated_bytes() == 8 * w);
    dev.release(G, device);
    checks.expect(dev.allocated_bytes() == 0);
  });
}

TEST_CASE("the heap instrument sees what a kernel takes, and nothing of the runtime's own") {
  const MeshShape mesh = mesh_like({1, 2});
  on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
    dev.reserve_arena(4096);
    dev.begin_step();
    const BufferView b = dev.allocate(D, 0, 32 * mesh.shard);
    dev.launch(0, D, {},
               [b, big = std::vector<char>(4096)] { std::memset(b.data, static_cast<int>(big.size() % 7), 32); });
    dev.launch(1, D, {}, [] {  // 1000 and 3000 bytes one after the other, then both at once
      { const std::vector<char> one(1000); }
      const std::vector<char> two(3000), three(1000);
      if (two[0] != three[0]) std::abort();
    });
    const std::int32_t ready[] = {0};
    dev.all_gather(2, G, Communicator::shard, ready, b, 8, DType::f32);
    dev.launch(3, D, {}, [] {
      void* p = std::calloc(10, 100);
      p = std::realloc(p, 5000);
      std::free(p);
    });
    dev.synchronize();
    for (const OperationRecord& r : dev.records()) {
      if (r.op == 0 || r.op == 2) checks.expect(r.heap_bytes == 0, "no heap was taken");
      if (r.op == 1) checks.expect(r.heap_bytes >= 4000 && r.heap_bytes < 4100, "two vectors");
      if (r.op == 3) checks.expect(r.heap_bytes >= 5000 && r.heap_bytes < 6200, "realloc");
    }
  });
}

TEST_CASE("every rank gets the texts of all, in the order of the ranks, while work is in flight") {
  for (const MeshShape mesh : meshes())
    on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
      const std::int64_t ranks = mesh.replicate * mesh.shard;
      const auto text = [](std::int64_t rank, int round) {
        if (round == 1) return std::string();
        if (round == 2) return std::string(static_cast<std::size_t>(rank * 100'000), 'x');
        return "rank " + std::to_string(rank) + std::string(1, '\0') + " round " + std::to_string(round);
      };
      dev.reserve_arena(4096);
      dev.begin_step();
      const BufferView b = dev.allocate(A, 0, 64);
      std::int32_t op = 0;
      dev.launch(op++, A, {}, [b] { std::memset(b.data, 0, 64); });
      for (int round = 0; round < 6; ++round) {
        for (int i = 0; i < 5; ++i) dev.all_reduce(op++, A, Communicator::world, {}, b, 8, DType::f64, Reduction::sum);
        if (dev.rank() % 3 == round % 3) nap(1);
        const std::vector<std::string> all = dev.exchange(text(dev.rank(), round));
        checks.expect(static_cast<std::int64_t>(all.size()) == ranks, "texts");
        for (std::int64_t r = 0; r < ranks && r < static_cast<std::int64_t>(all.size()); ++r)
          checks.expect(all[static_cast<std::size_t>(r)] == text(r, round), "a text");
      }
      dev.synchronize();
    });
}

TEST_CASE("a backend runs again and again, and says which ranks live here") {
  const auto backend = subject().make(mesh_like({1, 2}), {});
  const std::vector<std::int64_t> local = backend->local_ranks();
  CHECK(!local.empty());
  CHECK(std::is_sorted(local.begin(), local.end()));
  CHECK(local.back() < backend->ranks());
  CHECK(!backend->name().empty());
  CHECK(!backend->environment().empty());
  for (int i = 0; i < 5; ++i) {
    std::mutex mutex;
    std::vector<std::int64_t> seen;
    backend->run([&](Device& dev) {
      const std::lock_guard lock(mutex);
      seen.push_back(dev.rank());
    });
    std::sort(seen.begin(), seen.end());
    CHECK(seen == local);
  }
}

}  // namespace
}  // namespace fsdp::conformance
