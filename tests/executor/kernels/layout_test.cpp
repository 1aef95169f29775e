// What is not an op: layouts, conversions, optimizers, norms. Expected values are index formulas, PyTorch's numbers or
// small integers that every type holds exactly.
#include "planner/layout.h"

#include <doctest/doctest.h>

#include "models/input/error.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Shape = std::vector<std::int64_t>;

// fully_shard's layout, from its definition: rows are chunked as torch.chunk does, every chunk is padded to the first
// one's rows.
UnitLayout layout_of(const std::vector<Shape>& shapes, std::int64_t world) {
  UnitLayout layout;
  layout.shards = world;
  for (const Shape& shape : shapes) {
    ShardedParam p;
    p.rows = shape[0], p.row_elements = 1;
    for (std::size_t i = 1; i < shape.size(); ++i) p.row_elements *= shape[i];
    p.chunk_rows = (p.rows + world - 1) / world;
    p.offset = layout.shard_elements;
    layout.shard_elements += p.chunk_rows * p.row_elements;
    layout.reduce_elements = layout.shard_elements;
    layout.numel += p.rows * p.row_elements;
    layout.params.push_back(p);
  }
  return layout;
}

const std::vector<std::vector<Shape>> kUnits = {
    {{5, 3}, {7}, {2049, 2, 2}}, {{1, 4}, {3, 1}}, {{8, 2}}, {{2}, {9, 5}, {1}, {16, 3}}};

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

// Element e of a parameter, counted over the unit so that all differ; below 2^8 so that bf16 holds it.
double value_of(std::size_t param, std::int64_t element) {
  return static_cast<double>((element * 7 + static_cast<std::int64_t>(param) * 31) % 251 + 1);
}

std::vector<Block> whole_parameters(const UnitLayout& layout, DType type) {
  std::vector<Block> full;
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    Numbers x(index(layout.params[i].numel()));
    for (std::size_t e = 0; e < x.size(); ++e) x[e] = value_of(i, static_cast<std::int64_t>(e));
    full.push_back(encode(type, x));
  }
  return full;
}

std::vector<BufferView> views(std::vector<Block>& memory) {
  std::vector<BufferView> v;
  for (Block& m : memory) v.push_back(m.view());
  return v;
}

// The [W, S_g] buffer: every element of every parameter at its place, zeros elsewhere. `absent`: a parameter without a
// gradient.
Numbers expected_flat(const UnitLayout& layout, std::size_t absent) {
  Numbers flat(index(layout.shards * layout.shard_elements), 0.0);
  for (std::size_t i = 0; i < layout.params.size(); ++i) {
    const ShardedParam& p = layout.params[i];
    for (std::int64_t e = 0; e < p.numel() && i != absent; ++e) {
      const std::int64_t row = e / p.row_elements, rank = row / p.chunk_rows;
      flat[index(rank * layout.shard_elements + p.offset + e - rank * p.chunk_rows * p.row_elements)] = value_of(i, e);
    }
  }
  return flat;
}

BufferView none() { return {}; }

// A rank's rows of the second of two parameters, so that offsets matter; the first has `other` rows there.
struct SecondParameter {
  SecondParameter(const UnitLayout& l, std::int64_t rank)
      : layout(l),
        p(l.params[1]),
        first(p.local_row_begin(rank)),
        n(p.local_rows(rank)),
        other(l.params[0].local_rows(rank)) {}
  [[nodiscard]] Numbers part(const Numbers& whole) const { return {whole.begin() + first, whole.begin() + first + n}; }
  // As the shard holds them, with 77 in the first parameter and the padding.
  [[nodiscard]] Numbers padded(const Numbers& whole) const {
    Numbers x(index(layout.shard_elements), 77.0);
    std::copy_n(whole.begin() + first, n, x.begin() + p.offset);
    return x;
  }
  const UnitLayout& layout;
  const ShardedParam& p;
  std::int64_t first, n, other;
};

}  // namespace

TEST_CASE("copy-in puts every element where the layout says, and zeros elsewhere") {
  for (const auto& shapes : kUnits)
    for (const std::int64_t world : {1, 2, 3, 4, 8})
      for (const auto& [from, to] : {std::pair{DType::f64, DType::f64},
                                     {DType::f32, DType::f32},
                                     {DType::bf16, DType::f32},
                                     {DType::f32, DType::bf16}}) {
        const UnitLayout layout = layout_of(shapes, world);
        std::vector<Block> full = whole_parameters(layout, from);
        Block flat = encode(to, Numbers(index(world * layout.shard_elements), -9.0));
        host_kernel_set().scatter_copy_in(layout, from, views(full), to, flat.view());
        CHECK(decode(to, flat.view()) == expected_flat(layout, shapes.size()));
        std::vector<BufferView> without = views(full);
        without[0] = none();
        host_kernel_set().scatter_copy_in(layout, from, without, to, flat.view());
        CHECK(decode(to, flat.view()) == expected_flat(layout, 0));
      }
}

TEST_CASE("copy-out is the inverse of copy-in") {
  for (const auto& shapes : kUnits)
    for (const std::int64_t world : {1, 2, 3, 4, 8})
      for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
        const UnitLayout layout = layout_of(shapes, world);
        Block flat = encode(type, expected_flat(layout, shapes.size()));
        std::vector<Block> full;
        for (const ShardedParam& p : layout.params) full.push_back(encode(type, Numbers(index(p.numel()), -9.0)));
        host_kernel_set().gather_copy_out(layout, type, flat.view(), views(full));
        std::vector<Block> truth = whole_parameters(layout, type);
        for (std::size_t i = 0; i < full.size(); ++i)
          CHECK(decode(type, full[i].view()) == decode(type, truth[i].view()));
      }
}

TEST_CASE("the reduce-scatter input equals torch._chunk_cat") {
  const nlohmann::json recorded = golden("kernels.json")["chunk_cat"];
  const std::vector<Shape> shapes = recorded["shapes"];
  const UnitLayout layout = layout_of(shapes, recorded["world"]);
  REQUIRE(layout.shard_elements == recorded["columns"]);
  std::vector<Block> full;
  for (const ShardedParam& p : layout.params) {
    Numbers x(index(p.numel()));
    for (std::size_t e = 0; e < x.size(); ++e) x[e] = static_cast<double>(e % 251) - 125;
    full.push_back(encode(DType::bf16, x));
  }
  Block flat(layout.shards * layout.shard_elements * 4);
  host_kernel_set().scatter_copy_in(layout, DType::bf16, views(full), DType::f32, flat.view());
  const Numbers ours = decode(DType::f32, flat.view());
  double sum = 0, weighted = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) sum += ours[i], weighted += ours[i] * static_cast<double>(i % 1009);
  CHECK(sum == recorded["sum"].get<double>());
  CHECK(weighted == recorded["weighted_sum"].get<double>());
  for (std::int64_t r = 0; r < layout.shards; ++r) {
    const Numbers head = recorded["head_of_each_row"][index(r)];
    CHECK(Numbers(ours.begin() + r * layout.shard_elements, ours.begin() + r * layout.shard_elements + 12) == head);
  }
}

TEST_CASE("layout copies refuse other sizes") {
  const UnitLayout layout = layout_of({{5, 3}}, 2);
  std::vector<Block> full = whole_parameters(layout, DType::f32);
  Block flat(2 * 9 * 4), small(2 * 9 * 4 - 4), part(14 * 4);
  CHECK_NOTHROW(host_kernel_set().scatter_copy_in(layout, DType::f32, views(full), DType::f32, flat.view()));
  CHECK_THROWS_AS(host_kernel_set().scatter_copy_in(layout, DType::f32, views(full), DType::f32, small.view()),
                  MachineError);
  CHECK_THROWS_AS(
      host_kernel_set().scatter_copy_in(layout, DType::f32, std::vector{part.view()}, DType::f32, flat.view()),
      MachineError);
  CHECK_THROWS_AS(host_kernel_set().scatter_copy_in(layout, DType::f32, {}, DType::f32, flat.view()), MachineError);
  CHECK_THROWS_AS(host_kernel_set().gather_copy_out(layout, DType::f32, small.view(), views(full)), MachineError);
  CHECK_THROWS_AS(host_kernel_set().scatter_copy_in(layout, DType::i64, views(full), DType::f32, flat.view()),
                  MachineError);
}

// Spacing of bf16 at 1 is 2^-7. 1 + 2^-8 is half way between 1 (even) and 1 + 2^-7; 1 + 3 * 2^-8 between 1 + 2^-7 and 1
// + 2^-6 (even).
TEST_CASE("bf16 rounds to nearest, ties to even") {
  const double u = 1.0 / 256, tiny = 1.0 / (1 << 20);
  const auto round = [](double x) { return rounded(DType::bf16, {x})[0]; };
  CHECK(round(1 + u) == 1);
  CHECK(round(1 + u + tiny) == 1 + 2 * u);
  CHECK(round(1 + 3 * u) == 1 + 4 * u);
  CHECK(round(-(1 + 3 * u - tiny)) == -(1 + 2 * u));
  CHECK(round(3.4e38) == std::numeric_limits<double>::infinity());
  CHECK(round(-0.0) == 0.0);
  CHECK(std::signbit(round(-0.0)));
  CHECK(std::isnan(round(std::numeric_limits<double>::quiet_NaN())));
  CHECK(round(std::numeric_limits<double>::infinity()) == std::numeric_limits<double>::infinity());
  CHECK(round(9.2e-41) == std::ldexp(1.0, -133));  // subnormal: 9.2e-41 is nearest to one step of 2^-133 = 9.18e-41
}

TEST_CASE("conversions and sums between all types") {
  for (const DType from : {DType::f64, DType::f32, DType::bf16, DType::f16})
    for (const DType to : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      Block a = encode(from, {1, -2, 3.5, 0, 100}), b = encode(to, {10, 20, 30, 40, 50});
      host_kernel_set().convert(from, a.view(), to, b.view(), 5, true);
      CHECK(decode(to, b.view()) == Numbers{11, 18, 33.5, 40, 150});
      host_kernel_set().convert(from, a.view(), to, b.view(), 5, false);
      CHECK(decode(to, b.view()) == Numbers{1, -2, 3.5, 0, 100});
      if (from == to) {
        host_kernel_set().convert(from, a.view(), from, b.view(), 5, true);
        CHECK(decode(to, b.view()) == Numbers{2, -4, 7, 0, 200});
      }
      CHECK_THROWS_AS(host_kernel_set().convert(from, a.view(), to, b.view(), 4, false), MachineError);
    }
  Block x = encode(DType::f32, {3, -4, 12});
  CHECK(sum_of_squares(host_kernel_set(), DType::f32, x.view()) == 169);
  host_kernel_set().scale(DType::f32, x.view(), 3, 0.5);
  CHECK(decode(DType::f32, x.view()) == Numbers{1.5, -2, 6});
  CHECK_THROWS_AS(host_kernel_set().scale(DType::i64, encode(DType::i64, {1}).view(), 1, 2), MachineError);
  const BufferView all = x.view();
  CHECK_THROWS_AS(host_kernel_set().local_norm(DType::f32, std::span(&all, 1), 2, encode(DType::f32, {0}).view()),
                  MachineError);
}

// Three steps on one vector of 7 cut over 1, 2, 3 and 4 ranks, padding in between; fp32 within a few of its rounding
// steps.
TEST_CASE("AdamW equals torch.optim.AdamW on every shard, and leaves padding alone") {
  const nlohmann::json r = golden("kernels.json")["adamw"];
  const Optimizer o{OptimizerKind::adamw, r["lr"], r["beta1"], r["beta2"], r["eps"], r["weight_decay"]};
  const Numbers begin = r["begin"], end = r["end"], mean = r["mean"], square = r["square"];
  for (const auto& [type, tolerance] : {std::pair{DType::f64, 1e-14}, {DType::f32, 1e-6}, {DType::bf16, 0.05}})
    for (const std::int64_t world : {1, 2, 3, 4})
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const UnitLayout layout = layout_of({{2}, {7}}, world);  // a second parameter, so that offsets matter
        const SecondParameter second(layout, rank);
        const std::int64_t n = second.n, other = second.other, offset = second.p.offset;
        const auto part = [&](const Numbers& whole) { return second.part(whole); };
        const auto padded = [&](const Numbers& whole) { return encode(type, second.padded(whole)); };
        Block shard = padded(begin), m = encode(type, Numbers(index(other + n))),
              v = encode(type, Numbers(index(other + n)));
        for (std::int64_t step = 1; step <= 3; ++step) {
          Block gradient = padded(r["gradients"][index(step - 1)]);
          host_kernel_set().adamw({layout, rank, o, step, type, gradient.view(), shard.view(), m.view(), v.view()});
        }
        const Numbers after = decode(type, shard.view()), ms = decode(type, m.view()), vs = decode(type, v.view());
        CHECK(distance(Numbers(after.begin() + offset, after.begin() + offset + n), part(end)) <= tolerance);
        CHECK(distance(Numbers(ms.begin() + other, ms.end()), part(mean)) <= tolerance);
        CHECK(distance(Numbers(vs.begin() + other, vs.end()), part(square)) <= tolerance);
        for (std::int64_t i = offset + n; i < layout.shard_elements; ++i) CHECK(after[index(i)] == 77.0);
      }
}

TEST_CASE("SGD equals torch.optim.SGD") {
  const nlohmann::json r = golden("kernels.json")["sgd"];
  Optimizer o;
  o.kind = OptimizerKind::sgd, o.lr = r["lr"], o.weight_decay = r["weight_decay"];
  const UnitLayout layout = layout_of({{5}}, 1);
  Block p = encode(DType::f64, r["begin"]), g = encode(DType::f64, r["gradient"]);
  host_kernel_set().sgd({layout, 0, o, 1, DType::f64, g.view(), p.view()});
  CHECK(distance(decode(DType::f64, p.view()), r["end"].get<Numbers>()) <= 1e-15);
}

TEST_CASE("SGD with momentum equals torch.optim.SGD on every shard, and leaves padding alone") {
  const nlohmann::json r = golden("kernels.json")["sgd_momentum"];
  Optimizer o;
  o.kind = OptimizerKind::sgd, o.lr = r["lr"], o.weight_decay = r["weight_decay"], o.momentum = r["momentum"];
  const Numbers begin = r["begin"], end = r["end"], buffer = r["buffer"];
  for (const auto& [type, tolerance] : {std::pair{DType::f64, 1e-14}, {DType::f32, 1e-6}, {DType::bf16, 0.05}})
    for (const std::int64_t world : {1, 2, 3, 4})
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const UnitLayout layout = layout_of({{2}, {7}}, world);
        const SecondParameter second(layout, rank);
        const std::int64_t n = second.n, other = second.other, offset = second.p.offset;
        const auto part = [&](const Numbers& whole) { return second.part(whole); };
        const auto padded = [&](const Numbers& whole) { return encode(type, second.padded(whole)); };
        Block shard = padded(begin), b = encode(type, Numbers(index(other + n)));
        for (std::int64_t step = 1; step <= 4; ++step) {
          Block gradient = padded(r["gradients"][index(step - 1)]);
          host_kernel_set().sgd({layout, rank, o, step, type, gradient.view(), shard.view(), b.view()});
        }
        const Numbers after = decode(type, shard.view()), bs = decode(type, b.view());
        CHECK(distance(Numbers(after.begin() + offset, after.begin() + offset + n), part(end)) <= tolerance);
        CHECK(distance(Numbers(bs.begin() + other, bs.end()), part(buffer)) <= tolerance);
        for (std::int64_t i = offset + n; i < layout.shard_elements; ++i) CHECK(after[index(i)] == 77.0);
      }
}

TEST_CASE("optimizers refuse other sizes, ranks and steps") {
  const UnitLayout layout = layout_of({{5}}, 2);
  Block a(12), b(12), m(12), v(12), small(8);
  CHECK_NOTHROW(host_kernel_set().adamw({layout, 0, {}, 1, DType::f32, a.view(), b.view(), m.view(), v.view()}));
  CHECK_THROWS_AS(host_kernel_set().adamw({layout, 1, {}, 1, DType::f32, a.view(), b.view(), m.view(), v.view()}),
                  MachineError);  // holds 2, not 3
  CHECK_THROWS_AS(host_kernel_set().adamw({layout, 2, {}, 1, DType::f32, a.view(), b.view(), m.view(), v.view()}),
                  MachineError);
  CHECK_THROWS_AS(host_kernel_set().adamw({layout, 0, {}, 0, DType::f32, a.view(), b.view(), m.view(), v.view()}),
                  MachineError);
  CHECK_THROWS_AS(host_kernel_set().adamw({layout, 0, {}, 1, DType::f32, small.view(), b.view(), m.view(), v.view()}),
                  MachineError);
  CHECK_THROWS_AS(host_kernel_set().sgd({layout, 0, {}, 1, DType::f32, a.view(), small.view()}), MachineError);
  Optimizer momentum;
  momentum.momentum = 0.9;
  CHECK_NOTHROW(host_kernel_set().sgd({layout, 0, momentum, 1, DType::f32, a.view(), b.view(), m.view()}));
  CHECK_THROWS_AS(host_kernel_set().sgd({layout, 0, momentum, 1, DType::f32, a.view(), b.view()}), MachineError);
}
