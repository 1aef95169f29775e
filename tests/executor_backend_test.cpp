// What every Backend must do, written once over the interface: add a backend to `backends()` and it is held to the same.
#include <doctest/doctest.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "executor/backend.h"
#include "models/error.h"

using namespace fsdp;

namespace {

using Make = std::unique_ptr<Backend> (*)(MeshShape, const BackendOptions&);
struct Subject {
  const char* name;
  Make make;
};
const std::vector<Subject>& backends() {
  static const std::vector<Subject> all = {{"host", make_host_backend}};
  return all;
}

constexpr Stream D = Stream::compute, G = Stream::all_gather, R = Stream::reduce_scatter, A = Stream::all_reduce;
const std::vector<MeshShape> kMeshes = {{1, 1}, {1, 2}, {2, 1}, {1, 3}, {3, 1}, {2, 2},
                                        {1, 4}, {4, 1}, {2, 3}, {2, 4}, {4, 2}, {1, 8}};
const std::vector<DType> kTypes = {DType::f64, DType::f32, DType::bf16};

// Small integers are exact in every type here (bf16: up to 256), and so are their sums below: the result is known beforehand.
void put(DType t, std::byte* at, std::int64_t i, double v) {
  if (t == DType::f64) std::memcpy(at + 8 * i, &v, 8);
  const auto f = static_cast<float>(v);
  if (t == DType::f32) std::memcpy(at + 4 * i, &f, 4);
  const auto b = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(f) >> 16);
  if (t == DType::bf16) std::memcpy(at + 2 * i, &b, 2);
}
double get(DType t, const std::byte* at, std::int64_t i) {
  double v = 0;
  float f = 0;
  std::uint16_t b = 0;
  if (t == DType::f64) {
    std::memcpy(&v, at + 8 * i, 8);
    return v;
  }
  if (t == DType::f32) {
    std::memcpy(&f, at + 4 * i, 4);
    return f;
  }
  std::memcpy(&b, at + 2 * i, 2);
  return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16);
}
double value(std::int64_t rank, std::int64_t i) {
  return static_cast<double>((rank * 5 + i * 3) % 13);
}  // 0 .. 12; 8 ranks: <= 96

// doctest's checks are not for other threads: bodies count, the main thread checks.
struct Counter {
  std::atomic<std::int64_t> wrong{0}, seen{0};
  void expect(bool ok) {
    ++seen;
    if (!ok) ++wrong;
  }
};

std::vector<std::int64_t> group_of(MeshShape mesh, Communicator c, std::int64_t rank) {
  std::vector<std::int64_t> g;
  for (std::int64_t r = 0; r < mesh.replicate * mesh.shard; ++r) {
    const bool in = c == Communicator::world ||
                    (c == Communicator::shard ? r / mesh.shard == rank / mesh.shard : r % mesh.shard == rank % mesh.shard);
    if (in) g.push_back(r);
  }
  return g;
}

template <class Body>
std::string failure_of(Backend& b, Body body) {
  try {
    b.run(body);
  } catch (const MachineError& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every collective, type and group gives the result known beforehand") {
  for (const Subject& subject : backends())
    for (const MeshShape mesh : kMeshes) {
      CAPTURE(subject.name);
      CAPTURE(mesh.replicate);
      CAPTURE(mesh.shard);
      const auto backend = subject.make(mesh, {});
      REQUIRE(backend->ranks() == mesh.replicate * mesh.shard);
      Counter counter;
      backend->run([&](Device& dev) {
        dev.reserve_arena(1 << 19);
        dev.begin_step();
        std::int32_t op = 0;
        for (const Communicator comm : {Communicator::shard, Communicator::replicate, Communicator::world})
          for (const DType type : kTypes)
            for (const std::int64_t n : {0, 1, 7, 1025}) {
              const std::vector<std::int64_t> group = group_of(mesh, comm, dev.rank());
              const auto w = static_cast<std::int64_t>(group.size());
              std::int64_t me = 0;
              while (group[static_cast<std::size_t>(me)] != dev.rank()) ++me;
              const std::int64_t bytes = w * n * size_of(type);
              constexpr std::int64_t room = 1 << 17;  // a region of the arena per buffer: pools do not share one
              const BufferView gathered = dev.allocate(G, 0, bytes), in = dev.allocate(R, room, bytes);
              const BufferView out = dev.allocate(R, 2 * room, n * size_of(type)), all = dev.allocate(A, 3 * room, bytes);
              dev.launch(op, G, {}, [=, rank = dev.rank()] {
                for (std::int64_t i = 0; i < w * n; ++i)
                  put(type, gathered.data, i, i / std::max<std::int64_t>(n, 1) == me ? value(rank, i) : -1);
              });
              dev.launch(op + 1, R, {}, [=, rank = dev.rank()] {
                for (std::int64_t i = 0; i < w * n; ++i) put(type, in.data, i, value(rank, i));
              });
              dev.launch(op + 2, A, {}, [=, rank = dev.rank()] {
                for (std::int64_t i = 0; i < w * n; ++i) put(type, all.data, i, value(rank, i));
              });
              dev.all_gather(op + 3, G, comm, {}, gathered, n, type);
              dev.reduce_scatter(op + 4, R, comm, {}, in, out, n, type, Reduction::sum);
              dev.all_reduce(op + 5, A, comm, {}, all, w * n, type, Reduction::average);
              dev.synchronize();
              for (std::int64_t i = 0; i < w * n; ++i) {
                const std::int64_t owner = group[static_cast<std::size_t>(i / n)];
                counter.expect(get(type, gathered.data, i) == value(owner, i));
                double sum = 0;
                for (const std::int64_t r : group) sum += value(r, i);
                if (i / n == me) counter.expect(get(type, out.data, i % n) == sum);
                // The mean is rounded once to the type; 2^-8 relative bounds bf16.
                const double mean = sum / static_cast<double>(w), got = get(type, all.data, i);
                counter.expect(std::abs(got - mean) <= mean * (type == DType::f64   ? 1e-15
                                                               : type == DType::f32 ? 1e-7
                                                                                    : 1.0 / 256));
              }
              dev.release(G, gathered);
              dev.release(R, in);
              dev.release(R, out);
              dev.release(A, all);
              op += 6;
            }
      });
      CHECK(counter.wrong == 0);
      CHECK(counter.seen > 0);
    }
}

TEST_CASE("a reduction does not depend on timing and is identical on every rank") {
  // 1e8 + 1 - 1e8 in float depends on the order: in the order of the ranks it is 0 (1e8 + 1 rounds to 1e8).
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({1, 3}, {});
    for (int trial = 0; trial < 8; ++trial) {
      Counter counter;
      backend->run([&](Device& dev) {
        dev.reserve_arena(64);
        dev.begin_step();
        const BufferView b = dev.allocate(A, 0, 12);
        dev.launch(0, A, {}, [=, rank = dev.rank()] {
          std::this_thread::sleep_for(std::chrono::milliseconds((rank * 2 + trial) % 3));
          const double mine[3] = {1e8, 1, -1e8};
          for (int i = 0; i < 3; ++i) put(DType::f32, b.data, i, mine[rank]);
        });
        dev.all_reduce(1, A, Communicator::world, {}, b, 3, DType::f32, Reduction::sum);
        dev.synchronize();
        for (int i = 0; i < 3; ++i) counter.expect(get(DType::f32, b.data, i) == 0.0);
      });
      CHECK(counter.wrong == 0);
    }
  }
}

TEST_CASE("streams run in order, events order streams, and records tell the order of starts") {
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({1, 2}, {});
    Counter counter;
    backend->run([&](Device& dev) {
      dev.reserve_arena(64);
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
        counter.expect(seen.size() == 200);
        for (std::size_t i = 0; i < seen.size(); ++i) counter.expect(seen[i] == static_cast<int>(i));
        dev.synchronize();
        const std::vector<OperationRecord> records = dev.records();
        counter.expect(records.size() == 200);
        std::int32_t last[kStreams] = {-1, -1, -1, -1, -1};
        for (const OperationRecord& r : records) {
          counter.expect(r.op > last[static_cast<int>(r.stream)]);
          last[static_cast<int>(r.stream)] = r.op;
          counter.expect(r.start >= 0 && r.end >= r.start);
        }
      }
    });
    CHECK(counter.wrong == 0);
  }
}

TEST_CASE("one communicator runs one collective at a time in issue order, whatever the stream") {
  // The all-gather is issued first but its stream is busy; the reduce-scatter's stream is free and yet must come second.
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({1, 2}, {});
    Counter counter;
    backend->run([&](Device& dev) {
      dev.reserve_arena(1024);
      dev.begin_step();
      const BufferView a = dev.allocate(G, 0, 64), in = dev.allocate(R, 64, 64), out = dev.allocate(R, 128, 32);
      dev.launch(0, G, {}, [=] {
        std::memset(a.data, 0, 64);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      });
      dev.all_gather(1, G, Communicator::shard, {}, a, 8, DType::f32);
      dev.launch(2, R, {}, [=] { std::memset(in.data, 0, 64); });
      dev.reduce_scatter(3, R, Communicator::shard, {}, in, out, 8, DType::f32, Reduction::sum);
      dev.synchronize();
      double end_of_first = 0, start_of_second = 0;
      for (const OperationRecord& r : dev.records()) {
        if (r.op == 1) end_of_first = r.end;
        if (r.op == 3) start_of_second = r.start;
        if (r.op == 1) counter.expect(r.sent_bytes == 32);  // (W - 1) slots of 8 floats
      }
      counter.expect(end_of_first > 0 && start_of_second >= end_of_first);
    });
    CHECK(counter.wrong == 0);
  }
}

TEST_CASE("many collectives in flight on every stream of a 2 x 4 mesh") {
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({2, 4}, {});
    Counter counter;
    backend->run([&](Device& dev) {
      constexpr int kMany = 300;
      dev.reserve_arena(kMany * 64 * 3);
      dev.begin_step();
      std::vector<BufferView> views;
      for (int i = 0; i < 3 * kMany; ++i) views.push_back(dev.allocate(D, i * 64, 32));
      std::int32_t op = 0;
      dev.launch(op++, D, {}, [&] {
        for (BufferView v : views)
          for (int k = 0; k < 8; ++k) put(DType::f32, v.data, k, 1);
      });
      const std::int32_t ready[] = {0};
      for (std::size_t i = 0; i < kMany; ++i) {
        dev.all_gather(op++, G, Communicator::shard, ready, views[3 * i], 2, DType::f32);
        dev.all_reduce(op++, A, Communicator::replicate, ready, views[3 * i + 1], 8, DType::f32, Reduction::sum);
        dev.all_reduce(op++, D, Communicator::world, ready, views[3 * i + 2], 8, DType::f32, Reduction::sum);
      }
      dev.synchronize();
      for (std::size_t i = 0; i < kMany; ++i)
        counter.expect(get(DType::f32, views[3 * i].data, 7) == 1 && get(DType::f32, views[3 * i + 1].data, 7) == 2 &&
                       get(DType::f32, views[3 * i + 2].data, 3) == 8);
    });
    CHECK(counter.wrong == 0);
    CHECK(counter.seen == 8 * 300);
  }
}

TEST_CASE("the allocator counts what is out, and refuses overlap, strangers and what lies outside") {
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({1, 1}, {});
    Counter counter;
    const auto refused = [&](auto action) {
      try {
        action();
        counter.expect(false);
      } catch (const MachineError&) {
        counter.expect(true);
      }
    };
    backend->run([&](Device& dev) {
      dev.reserve_arena(4096);
      refused([&] { dev.reserve_arena(4096); });
      const BufferView a = dev.allocate(D, 0, 100), b = dev.allocate(G, 128, 64), empty = dev.allocate(D, 128, 0);
      counter.expect(dev.allocated_bytes() == 164);
      refused([&] { (void)dev.allocate(D, 64, 8); });
      refused([&] { (void)dev.allocate(D, 96, 64); });
      refused([&] { (void)dev.allocate(D, 0, 4096); });
      refused([&] { (void)dev.allocate(D, 4095, 2); });
      refused([&] { (void)dev.allocate(D, -64, 8); });
      refused([&] { (void)dev.allocate(D, 64, INT64_MAX); });
      refused([&] { dev.release(D, {a.data, 99}); });
      refused([&] { dev.release(D, {a.data + 1, 99}); });
      dev.release(D, a);
      refused([&] { dev.release(D, a); });
      dev.release(D, empty);
      refused([&] { dev.release(D, empty); });
      counter.expect(dev.allocated_bytes() == 64);
      const BufferView again = dev.allocate(D, 0, 128);
      counter.expect(again.data == a.data && dev.allocated_bytes() == 192);
      dev.release(G, b);
      dev.release(D, again);
      counter.expect(dev.allocated_bytes() == 0);
    });
    CHECK(counter.wrong == 0);
    CHECK(counter.seen == 15);
  }
}

TEST_CASE("the heap instrument sees what a kernel takes, and nothing of the runtime's own") {
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({1, 2}, {});
    Counter counter;
    backend->run([&](Device& dev) {
      dev.reserve_arena(4096);
      dev.begin_step();
      const BufferView b = dev.allocate(D, 0, 64);
      dev.launch(0, D, {}, [b, big = std::vector<char>(4096)] { std::memset(b.data, static_cast<int>(big.size() % 7), 64); });
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
        if (r.op == 0 || r.op == 2) counter.expect(r.heap_bytes == 0);
        if (r.op == 1) counter.expect(r.heap_bytes >= 4000 && r.heap_bytes < 4100);
        if (r.op == 3) counter.expect(r.heap_bytes >= 5000 && r.heap_bytes < 6200);
      }
    });
    CHECK(counter.wrong == 0);
    CHECK(counter.seen == 8);
  }
}

TEST_CASE("wrong calls are refused: unknown events, an index twice, sizes beyond the buffer, no communicator") {
  for (const Subject& subject : backends()) {
    const auto backend = subject.make({1, 1}, {});
    const std::int32_t future[] = {5};
    const auto with = [&](auto call) {
      return failure_of(*backend, [&](Device& dev) {
        dev.reserve_arena(4096);
        dev.begin_step();
        call(dev, dev.allocate(D, 0, 64));
      });
    };
    CHECK(with([&](Device& d, BufferView) { d.launch(0, D, future, [] {}); }).find("has not been issued") != std::string::npos);
    CHECK(with([&](Device& d, BufferView) { d.wait_host(3); }).find("has not been issued") != std::string::npos);
    CHECK(with([&](Device& d, BufferView) {
            d.launch(0, D, {}, [] {});
            d.launch(0, D, {}, [] {});
          }).find("twice") != std::string::npos);
    CHECK(with([&](Device& d, BufferView v) {
            d.all_gather(0, G, Communicator::shard, {}, v, 17, DType::f32);
          }).find("does not fit") != std::string::npos);
    CHECK(with([&](Device& d, BufferView v) {
            d.all_gather(0, G, Communicator::shard, {}, v, INT64_MAX, DType::f32);
          }).find("does not fit") != std::string::npos);
    CHECK(with([&](Device& d, BufferView v) {
            d.all_gather(0, G, Communicator::none, {}, v, 1, DType::f32);
          }).find("without a communicator") != std::string::npos);
    CHECK(with([&](Device& d, BufferView v) {
            d.reduce_scatter(0, R, Communicator::shard, {}, v, {v.data, 4}, 2, DType::f32, Reduction::sum);
          }).find("does not fit") != std::string::npos);
    CHECK(with([&](Device& d, BufferView v) {
            d.all_reduce(0, R, Communicator::shard, {}, v, 1, DType::f16, Reduction::sum);
          }).find("does not reduce") != std::string::npos);
    CHECK(failure_of(*backend, [](Device&) {}) == "");
  }
  CHECK_THROWS_AS(make_host_backend({0, 2}), InputError);
  CHECK_THROWS_AS(make_host_backend({1 << 20, 1LL << 60}), InputError);
  CHECK_THROWS_AS(make_host_backend({1, 2}, {0}), InputError);
}
