// Collectives: every kind, type, group and division gives the numbers known beforehand, bit for bit and whatever the
// timing.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "tests/executor/conformance/conformance.h"

namespace fsdp::conformance {
namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

// 0 .. 12: exact in every type, and so are sums over 8 ranks, halved or not (bf16 holds 8 bits).
double value(std::int64_t rank, std::int64_t i) { return static_cast<double>((rank * 5 + i * 3) % 13); }

// One relative rounding of each type.
double rounding(DType t) {
  return t == DType::f64 ? 0x1p-53 : t == DType::f32 ? 0x1p-24 : t == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

constexpr Reduction kReductions[] = {
    Reduction::sum, Reduction::average, {ReductionKind::scaled_sum, 0.5}, Reduction::maximum};

// What a reduction gives, from its definition.
double reduced(const std::vector<std::int64_t>& group, Reduction reduction, std::int64_t i) {
  double sum = 0, most = 0;
  for (const std::int64_t r : group) {
    sum += value(r, i);
    most = std::max(most, value(r, i));
  }
  switch (reduction.kind) {
    case ReductionKind::sum: return sum;
    case ReductionKind::average: return sum / static_cast<double>(group.size());
    case ReductionKind::scaled_sum: return sum * reduction.multiply;
    case ReductionKind::maximum: return most;
  }
  return 0;
}

struct Division {  // of a buffer over the members of a group
  bool even = true;
  std::vector<std::int64_t> counts;
  [[nodiscard]] Slots slots() const { return even ? Slots(counts[0]) : Slots(counts); }
  [[nodiscard]] std::int64_t all() const { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); }
  [[nodiscard]] std::int64_t count(std::int64_t m) const { return counts[static_cast<std::size_t>(m)]; }
  [[nodiscard]] std::int64_t begin(std::int64_t m) const {
    return std::accumulate(counts.begin(), counts.begin() + m, std::int64_t{0});
  }
};

std::vector<Division> divisions(std::int64_t members) {
  const auto n = static_cast<std::size_t>(members);
  std::vector<Division> result;
  for (const std::int64_t each : {0, 1, 7, 1025}) result.push_back({true, std::vector<std::int64_t>(n, each)});
  std::vector<std::int64_t> uneven(n), first(n, 0), last(n, 0), middle(n, 3);
  for (std::size_t i = 0; i < n; ++i) uneven[i] = static_cast<std::int64_t>(17 + 100 * i * i);
  first.front() = 5;  // one slot holds all, the others nothing
  last.back() = 1030;
  middle[n / 2] = 0;
  for (const auto& counts : {uneven, first, last, middle, std::vector<std::int64_t>(n, 0)})
    result.push_back({false, counts});
  return result;
}

std::vector<Comm> comms_of(MeshShape mesh) {
  std::vector<Comm> comms = {Communicator::shard, Communicator::replicate, Communicator::world,
                             Communicator::shard_reduce};
  for (std::int64_t n = 1; n <= mesh.shard; ++n)
    if (mesh.shard % n == 0) comms.emplace_back(Communicator::reshard, n);
  comms.emplace_back(Communicator::own_shard, mesh.replicate);
  comms.emplace_back(Communicator::own_replicate, mesh.shard);
  return comms;
}
std::vector<Comm> sized_comms(MeshShape mesh) {
  std::vector<Comm> sized;
  for (const Comm& c : comms_of(mesh))
    if (c.size > 0) sized.push_back(c);
  return sized;
}

// All collectives over one communicator with one type and one division of the buffer.
class Round {
 public:
  Round(Device& device, Checks& checks, MeshShape mesh, Comm comm, DType type, Division division, std::int32_t& op)
      : device_(device),
        checks_(checks),
        comm_(comm),
        type_(type),
        group_(group_of(mesh, comm, device.rank())),
        me_(member_of(group_, device.rank())),
        division_(std::move(division)),
        all_(division_.all()),
        pieces_(device),
        op_(op) {}

  void run() {
    const std::int64_t width = size_of(type_), own = division_.count(me_), begin = division_.begin(me_);
    const BufferView gathered = filled(G, [=](std::int64_t i) { return i >= begin && i < begin + own ? 1 : -1; });
    device_.all_gather(op_++, G, comm_, {}, gathered, division_.slots(), type_);
    std::vector<BufferView> scattered, reduced_all, sent;
    for (const Reduction r : kReductions) {
      scattered.push_back(pieces_.take(R, own * width));
      device_.reduce_scatter(op_++, R, comm_, {}, filled(R), scattered.back(), division_.slots(), type_, r);
      reduced_all.push_back(filled(A));
      device_.all_reduce(op_++, A, comm_, {}, reduced_all.back(), all_, type_, r);
    }
    const BufferView in_place = filled(R);  // the output is this rank's slot of the input
    device_.reduce_scatter(op_++, R, comm_, {}, in_place, {in_place.data + begin * width, own * width},
                           division_.slots(), type_, Reduction::sum);
    for (const std::int64_t root : roots()) {
      sent.push_back(filled(D, [=, this](std::int64_t) { return root == me_ ? 1 : -1; }));
      device_.broadcast(op_++, D, comm_, {}, sent.back(), all_, type_, root);
    }
    device_.synchronize();

    check_gathered(gathered);
    for (std::size_t k = 0; k < std::size(kReductions); ++k) {
      check_reduced(scattered[k], begin, own, kReductions[k], "reduce-scatter");
      check_reduced(reduced_all[k], 0, all_, kReductions[k], "all-reduce");
    }
    check_reduced({in_place.data + begin * width, own * width}, begin, own, Reduction::sum, "reduce-scatter in place");
    for (std::size_t k = 0; k < sent.size(); ++k) {
      const std::int64_t root = group_[static_cast<std::size_t>(roots()[k])];
      bool equal = true;
      for (std::int64_t i = 0; i < all_; ++i) equal = equal && get(type_, sent[k].data, i) == value(root, i);
      checks_.expect(equal, "broadcast");
    }
    pieces_.release_all();
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> roots() const { return {0, static_cast<std::int64_t>(group_.size()) - 1}; }

  // A buffer that this rank's value is written to where `keep` is positive, and rubbish elsewhere.
  BufferView filled(
      Stream stream, const std::function<int(std::int64_t)>& keep = [](std::int64_t) { return 1; }) {
    const BufferView b = pieces_.take(stream, all_ * size_of(type_));
    device_.launch(op_++, stream, {}, [=, n = all_, type = type_, rank = device_.rank()] {
      for (std::int64_t i = 0; i < n; ++i) put(type, b.data, i, keep(i) > 0 ? value(rank, i) : -77);
    });
    return b;
  }

  void check_gathered(BufferView b) {
    for (std::size_t m = 0; m < group_.size(); ++m) {
      const auto member = static_cast<std::int64_t>(m);
      const std::int64_t begin = division_.begin(member), end = begin + division_.count(member);
      bool equal = true;
      for (std::int64_t i = begin; i < end; ++i) equal = equal && get(type_, b.data, i) == value(group_[m], i);
      checks_.expect(equal, "all-gather");
    }
  }

  // An average is the exact sum over W, rounded to fp32 (fp64) when it is divided and to the type when it is stored.
  void check_reduced(BufferView b, std::int64_t first, std::int64_t count, Reduction r, const char* what) {
    const double off = r.kind == ReductionKind::average ? rounding(type_) * 1.001 : 0;
    bool equal = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const double expected = reduced(group_, r, first + i);
      equal = equal && std::abs(get(type_, b.data, i) - expected) <= expected * off;
    }
    checks_.expect(equal, what);
  }

  Device& device_;
  Checks& checks_;
  Comm comm_;
  DType type_;
  std::vector<std::int64_t> group_;
  std::int64_t me_;
  Division division_;
  std::int64_t all_;
  Pieces pieces_;
  std::int32_t& op_;
};

TEST_CASE("every collective, reduction, type, group and division gives the result known beforehand") {
  for (const MeshShape mesh : meshes())
    on_ranks(
        mesh,
        [mesh](Device& dev, Checks& checks) {
          dev.reserve_arena(1 << 23);
          for (const Comm& comm : comms_of(mesh)) {
            dev.begin_step();
            std::int32_t op = 0;
            const auto members = static_cast<std::int64_t>(group_of(mesh, comm, dev.rank()).size());
            for (const DType type : kTypes)
              for (const Division& d : divisions(members)) Round(dev, checks, mesh, comm, type, d, op).run();
          }
        },
        sized_comms(mesh));
}

TEST_CASE("sub-groups of consecutive ranks work at the same time as each other and as the groups that hold them") {
  const MeshShape mesh = mesh_like({1, 8});
  on_ranks(
      mesh,
      [mesh](Device& dev, Checks& checks) {
        dev.reserve_arena(1 << 16);
        dev.begin_step();
        Pieces pieces(dev);
        std::int32_t op = 0;
        std::vector<std::pair<Comm, BufferView>> issued;
        for (int round = 0; round < 20; ++round)
          for (const Comm& comm : comms_of(mesh)) {
            const Stream stream = comm.size == 2 ? G : comm.size == 4 ? R : A;
            const BufferView b = pieces.take(stream, 8);
            dev.launch(op++, stream, {},
                       [=, rank = dev.rank()] { put(DType::f64, b.data, 0, std::ldexp(1.0, static_cast<int>(rank))); });
            dev.all_reduce(op++, stream, comm, {}, b, 1, DType::f64, Reduction::sum);
            issued.emplace_back(comm, b);
          }
        dev.synchronize();
        for (const auto& [comm, b] : issued) {  // one bit per member
          double bits = 0;
          for (const std::int64_t r : group_of(mesh, comm, dev.rank())) bits += std::ldexp(1.0, static_cast<int>(r));
          checks.expect(get(DType::f64, b.data, 0) == bits);
        }
      },
      sized_comms(mesh));
}

// Numbers of many magnitudes and signs, whose float sum depends on the order.
double scattered_value(std::int64_t rank, std::int64_t i) {
  const auto h = static_cast<std::uint64_t>(rank * 1000003 + i + 1) * 0x9E3779B97F4A7C15u;
  const double fraction = static_cast<double>(h >> 40) * 0x1p-24 + 0.5;
  return std::ldexp((h & 1u) != 0 ? fraction : -fraction, static_cast<int>(h >> 8 & 15u) - 8);
}

// In the order of the ranks, in the arithmetic of the type, rounded to the type once. What is stored is compared bit
// for bit.
template <class T>
T in_rank_order(std::int64_t ranks, std::int64_t i, Reduction r) {
  using Sum = Math<T>;
  Sum sum = 0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    T stored;
    store(stored, static_cast<Sum>(scattered_value(rank, i)));
    const auto part = static_cast<Sum>(load(stored));
    if (rank == 0) sum = r.kind == ReductionKind::scaled_sum ? static_cast<Sum>(r.multiply) * part : part;
    else if (r.kind == ReductionKind::maximum) sum = std::max(sum, part);
    else if (r.kind == ReductionKind::scaled_sum) {
      const volatile Sum product = static_cast<Sum>(r.multiply) * part;
      sum += product;
    } else sum += part;
  }
  if (r.kind == ReductionKind::average) sum /= static_cast<Sum>(ranks);
  T result;
  store(result, sum);
  return result;
}

template <class T>
void check_bits(Checks& checks, BufferView b, std::int64_t ranks, std::int64_t first, std::int64_t count, Reduction r) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T expected = in_rank_order<T>(ranks, first + i, r);
    checks.expect(std::memcmp(b.data + i * static_cast<std::int64_t>(sizeof(T)), &expected, sizeof(T)) == 0, "bits");
  }
}

TEST_CASE("reductions add in the order of the ranks, to the same bits on every rank, whatever the timing") {
  const MeshShape mesh = mesh_like({1, 5});
  for (int trial = 0; trial < 4; ++trial)
    on_ranks(mesh, [=](Device& dev, Checks& checks) {
      constexpr std::int64_t n = 700;
      const std::int64_t ranks = mesh.shard, all = n * ranks;
      dev.reserve_arena(1 << 20);
      std::int64_t delay = dev.rank() * 7 + trial;
      for (const DType type : kTypes)
        for (const Reduction r :
             {Reduction::sum, Reduction::average, Reduction{ReductionKind::scaled_sum, 0.3}, Reduction::maximum}) {
          dev.begin_step();
          Pieces pieces(dev);
          const BufferView in = pieces.take(R, all * size_of(type)), out = pieces.take(R, n * size_of(type)),
                           b = pieces.take(A, all * size_of(type));
          delay = delay * 5 % 23;
          if (delay % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(100 * delay));
          const auto fill = [=, rank = dev.rank()](BufferView to) {
            std::this_thread::sleep_for(std::chrono::microseconds(50 * delay));
            for (std::int64_t i = 0; i < all; ++i) put(type, to.data, i, scattered_value(rank, i));
          };
          dev.launch(0, R, {}, [=] { fill(in); });
          dev.launch(1, A, {}, [=] { fill(b); });
          dev.reduce_scatter(2, R, Communicator::shard, {}, in, out, n, type, r);
          dev.all_reduce(3, A, Communicator::world, {}, b, all, type, r);
          dev.synchronize();
          with_type(type, [&](auto element) {
            check_bits<decltype(element)>(checks, out, ranks, dev.rank() * n, n, r);
            check_bits<decltype(element)>(checks, b, ranks, 0, all, r);
          });
          pieces.release_all();
        }
    });
}

TEST_CASE("what is not a number, and infinities, go through collectives as arithmetic has it") {
  on_ranks(mesh_like({1, 2}), [](Device& dev, Checks& checks) {
    dev.reserve_arena(4096);
    for (const DType type : kTypes) {
      dev.begin_step();
      Pieces pieces(dev);
      const BufferView b = pieces.take(A, 4 * size_of(type)), m = pieces.take(A, 2 * size_of(type));
      dev.launch(0, A, {}, [=, first = dev.rank() == 0] {
        put(type, b.data, 0, first ? HUGE_VAL : 1);
        put(type, b.data, 1, first ? HUGE_VAL : -HUGE_VAL);
        put(type, b.data, 2, first ? NAN : 1);
        put(type, b.data, 3, -0.0);
        put(type, m.data, 0, first ? -HUGE_VAL : -2);
        put(type, m.data, 1, first ? -3 : -2);
      });
      dev.all_reduce(1, A, Communicator::world, {}, b, 4, type, Reduction::sum);
      dev.all_reduce(2, A, Communicator::world, {}, m, 2, type, Reduction::maximum);
      dev.synchronize();
      checks.expect(get(type, b.data, 0) == HUGE_VAL, "inf + 1");
      checks.expect(std::isnan(get(type, b.data, 1)), "inf - inf");
      checks.expect(std::isnan(get(type, b.data, 2)), "nan + 1");
      checks.expect(get(type, b.data, 3) == 0, "-0 - 0");
      checks.expect(get(type, m.data, 0) == -2 && get(type, m.data, 1) == -2, "maximum of negatives");
      pieces.release_all();
    }
  });
}

// Bytes that a rank takes from others: of an all-gather the slots of the others, of a reduce-scatter its own slot from
// each other, of an all-reduce the two of them over near-equal chunks, of a broadcast all of it except on the root.
TEST_CASE("the instruments count the bytes that move between ranks") {
  for (const MeshShape mesh : meshes())
    on_ranks(mesh, [mesh](Device& dev, Checks& checks) {
      const std::int64_t w = mesh.shard, me = dev.rank() % w;
      dev.reserve_arena(1 << 16);
      dev.begin_step();
      Pieces pieces(dev);
      std::vector<std::int64_t> counts(static_cast<std::size_t>(w));
      for (std::int64_t m = 0; m < w; ++m) counts[static_cast<std::size_t>(m)] = 3 * m;
      const std::int64_t uneven = 3 * w * (w - 1) / 2;
      const BufferView b = pieces.take(G, 4 * (8 * w + uneven)), out = pieces.take(G, 4 * (8 + 3 * w));
      dev.launch(0, G, {}, [=] { std::memset(b.data, 0, static_cast<std::size_t>(b.bytes)); });
      dev.all_gather(1, G, Communicator::shard, {}, b, 8, DType::f32);
      dev.all_gather(2, G, Communicator::shard, {}, b, Slots(counts), DType::f32);
      dev.reduce_scatter(3, G, Communicator::shard, {}, b, out, 8, DType::f32, Reduction::sum);
      dev.reduce_scatter(4, G, Communicator::shard, {}, b, out, Slots(counts), DType::f32, Reduction::sum);
      dev.all_reduce(5, G, Communicator::shard, {}, b, 8 * w, DType::f32, Reduction::sum);
      dev.broadcast(6, G, Communicator::shard, {}, b, 5, DType::f32, w - 1);
      dev.synchronize();
      const std::int64_t expected[] = {
          0, 8 * (w - 1), uneven - 3 * me, 8 * (w - 1), 3 * me * (w - 1), 2 * 8 * (w - 1), me == w - 1 ? 0 : 5};
      for (const OperationRecord& r : dev.records())
        checks.expect(r.sent_bytes == 4 * expected[static_cast<std::size_t>(r.op)], "sent bytes");
    });
}

}  // namespace
}  // namespace fsdp::conformance
