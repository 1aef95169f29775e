// Calls that cannot be right end the run, on every rank, with words that name what was wrong.
#include "tests/executor/conformance/conformance.h"

namespace fsdp::conformance {
namespace {

Failure of_call(const std::function<void(Device&, BufferView)>& call) {
  return failure_of(mesh_like({1, 1}), [&](Device& dev) {
    dev.reserve_arena(4096);
    dev.begin_step();
    call(dev, dev.allocate(D, 0, 64));
  });
}

TEST_CASE("wrong calls are refused: unknown events, an index twice, sizes beyond the buffer, no communicator") {
  const std::int32_t future[] = {5};
  CHECK(of_call([&](Device& d, BufferView) { d.launch(0, D, future, [] {}); }).says("has not been issued"));
  CHECK(of_call([&](Device& d, BufferView) { d.launch(-1, D, {}, [] {}); }).says("no operation's index"));
  CHECK(of_call([&](Device& d, BufferView) { d.wait_host(3); }).says("has not been issued"));
  CHECK(of_call([&](Device& d, BufferView) {
          d.launch(0, D, {}, [] {});
          d.launch(0, D, {}, [] {});
        }).says("twice"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.all_gather(0, G, Communicator::shard, {}, v, 17, DType::f32);
        }).says("does not fit"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.all_gather(0, G, Communicator::none, {}, v, 1, DType::f32);
        }).says("without a communicator"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.all_gather(0, G, {Communicator::reshard, 1}, {}, v, 1, DType::f32);
        }).says("has not asked for"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.reduce_scatter(0, R, Communicator::shard, {}, v, {v.data, 4}, 2, DType::f32, Reduction::sum);
        }).says("does not fit"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.broadcast(0, R, Communicator::shard, {}, v, 17, DType::f32, 0);
        }).says("does not fit"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.broadcast(0, R, Communicator::shard, {}, v, 1, DType::f32, 99);
        }).says("member 99"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.broadcast(0, R, Communicator::shard, {}, v, 1, DType::f32, -1);
        }).says("member -1"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.all_gather(0, R, Communicator::shard, {}, v, Slots(std::vector<std::int64_t>(99, 0)), DType::f32);
        }).says("99 slots"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.all_gather(0, R, Communicator::shard, {}, v, -1, DType::f32);
        }).says("-1"));
  CHECK(of_call([&](Device& d, BufferView v) {
          d.all_reduce(0, R, Communicator::shard, {}, v, 1, DType::i64, Reduction::sum);
        }).says("does not reduce"));
  for (const std::int64_t huge : {INT64_MAX, INT64_MAX / 4, INT64_MAX / 8 + 1})
    CHECK(of_call([&](Device& d, BufferView v) {
            d.all_gather(0, G, Communicator::shard, {}, v, huge, DType::f64);
          }).what != "");
  CHECK(failure_of(mesh_like({1, 1}), [](Device&) {}).what.empty());
  CHECK_THROWS_AS((void)subject().make({0, 2}, {}), InputError);
  CHECK_THROWS_AS((void)subject().make({1 << 20, 1LL << 60}, {}), InputError);
  CHECK_THROWS_AS((void)subject().make(mesh_like({1, 2}), {0}), InputError);
}

// All ranks issue the same collectives; the last one something else at operation 10.
Failure disagreement(const std::function<void(Device&, std::int32_t, BufferView, bool odd)>& issue) {
  const MeshShape mesh = mesh_like({1, 2});
  return failure_of(mesh, [&](Device& dev) {
    dev.reserve_arena(4096);
    dev.begin_step();
    const BufferView b = dev.allocate(G, 0, 1024);
    dev.launch(0, G, {}, [b] { std::memset(b.data, 0, 1024); });
    for (std::int32_t op = 1; op < 20; ++op) issue(dev, op, b, op == 10 && dev.rank() == mesh.shard - 1);
  });
}

void check_disagreement(const char* first, const char* last,
                        const std::function<void(Device&, std::int32_t, BufferView, bool)>& issue) {
  const Failure f = disagreement(issue);
  CHECK_MESSAGE(f.says("ranks disagree about a collective"), f.what);
  CHECK_MESSAGE(f.says(first), f.what);
  CHECK_MESSAGE(f.says(last), f.what);
  CHECK(f.op == 10);
}

TEST_CASE("ranks that disagree about a collective: action, elements, type, reduction, factor, root, slots") {
  const Comm comm = Communicator::shard;
  check_disagreement("all_gather of 4 fp32", "all_reduce of 4 fp32",
                     [&](Device& d, std::int32_t op, BufferView b, bool odd) {
                       if (odd) d.all_reduce(op, G, comm, {}, b, 4, DType::f32, Reduction::sum);
                       else d.all_gather(op, G, comm, {}, b, 4, DType::f32);
                     });
  check_disagreement("all_gather of 4 fp32", "all_gather of 5 fp32",
                     [&](Device& d, std::int32_t op, BufferView b, bool odd) {
                       d.all_gather(op, G, comm, {}, b, odd ? 5 : 4, DType::f32);
                     });
  check_disagreement("all_gather of 4 fp32", "all_gather of 4 bf16",
                     [&](Device& d, std::int32_t op, BufferView b, bool odd) {
                       d.all_gather(op, G, comm, {}, b, 4, odd ? DType::bf16 : DType::f32);
                     });
  check_disagreement("sum", "average", [&](Device& d, std::int32_t op, BufferView b, bool odd) {
    // Not into the part of b that another rank may still read.
    d.reduce_scatter(op, G, comm, {}, b, {b.data + 512, 16}, 4, DType::f32, odd ? Reduction::average : Reduction::sum);
  });
  check_disagreement("each by 0.5", "each by 0.25", [&](Device& d, std::int32_t op, BufferView b, bool odd) {
    d.all_reduce(op, G, comm, {}, b, 4, DType::f32, {ReductionKind::scaled_sum, odd ? 0.25 : 0.5});
  });
  check_disagreement("from member 0", "from member 1", [&](Device& d, std::int32_t op, BufferView b, bool odd) {
    d.broadcast(op, G, comm, {}, b, 4, DType::f32, odd ? 1 : 0);
  });
  const auto slots = [](std::int64_t last) {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(mesh_like({1, 2}).shard), 3);
    counts.back() = last;
    return Slots(counts);
  };
  check_disagreement(", 1 fp32 elements", ", 0 fp32 elements", [&](Device& d, std::int32_t op, BufferView b, bool odd) {
    d.all_gather(op, G, comm, {}, b, slots(odd ? 0 : 1), DType::f32);
  });
}

TEST_CASE("the factor of a plain sum means nothing") {
  const Failure f = disagreement([](Device& d, std::int32_t op, BufferView b, bool odd) {
    d.all_reduce(op, G, Communicator::shard, {}, b, 4, DType::f32, {ReductionKind::sum, odd ? 2.0 : 1.0});
  });
  CHECK_MESSAGE(f.what.empty(), f.what);
}

}  // namespace
}  // namespace fsdp::conformance
