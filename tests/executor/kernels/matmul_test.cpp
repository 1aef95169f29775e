// host_matmul: every orientation, type and odd size against the definition; one thread; no heap.
#include "executor/kernels/matmul/matmul.h"

#include <doctest/doctest.h>

#include <thread>

#include "executor/arithmetic/exp.h"
#include "executor/ranks/instruments/heap_meter.h"
#include "models/input/error.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Matmul {
  Transpose ta, tb;
  std::int64_t m, n, k;
};

// c[i, j] of the definition, from operands as they are stored.
double element(const Matmul& p, const Numbers& a, const Numbers& b, std::int64_t i, std::int64_t j) {
  double sum = 0;
  for (std::int64_t l = 0; l < p.k; ++l)
    sum += a[static_cast<std::size_t>(p.ta == Transpose::yes ? l * p.m + i : i * p.k + l)] *
           b[static_cast<std::size_t>(p.tb == Transpose::yes ? j * p.k + l : l * p.n + j)];
  return sum;
}

double error_of(const Matmul& p, DType type, bool accumulate) {
  const auto numbers = [&](std::int64_t n, unsigned seed) {
    return rounded(type, random_numbers(static_cast<std::size_t>(n), seed));
  };
  const Numbers a = numbers(p.m * p.k, 1), b = numbers(p.k * p.n, 2), before = numbers(p.m * p.n, 3);
  Numbers expected(before.size());
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      const auto at = static_cast<std::size_t>(i * p.n + j);
      expected[at] = element(p, a, b, i, j) + (accumulate ? before[at] : 0.0);
    }
  Block ma = encode(type, a), mb = encode(type, b), mc = encode(type, before),
        scratch(host_matmul_scratch_bytes(type, p.m, p.n, p.k));
  host_kernel_set().matmul(type, p.ta, p.tb, p.m, p.n, p.k, ma.view().data, mb.view().data, mc.view().data, accumulate,
                           scratch.view());
  return distance(decode(type, mc.view()), expected);
}

}  // namespace

// Rounding: fp64 and fp32 grow with the depth k <= 600, at worst k u of the largest entry (7e-14, 4e-5), typically
// sqrt(k) u; bf16 and fp16 add one rounding of the result, 2^-9 and 2^-12 of it.
TEST_CASE("products equal their definition in every orientation") {
  const Transpose both[] = {Transpose::no, Transpose::yes};
  for (const auto& [type, tolerance] :
       {std::pair{DType::f64, 7e-14}, {DType::f32, 4e-5}, {DType::bf16, 1.0 / 256}, {DType::f16, 1.0 / 2048}})
    for (const Transpose ta : both)
      for (const Transpose tb : both)
        for (const bool accumulate : {false, true}) {
          for (const std::int64_t m : {1, 3, 17})
            for (const std::int64_t n : {1, 5, 31})
              for (const std::int64_t k : {1, 7, 64}) CHECK(error_of({ta, tb, m, n, k}, type, accumulate) <= tolerance);
          CHECK(error_of({ta, tb, 515, 3, 5}, type, accumulate) <=
                tolerance);  // beyond one bf16 tile in each dimension
          CHECK(error_of({ta, tb, 3, 600, 5}, type, accumulate) <= tolerance);
          CHECK(error_of({ta, tb, 5, 3, 600}, type, accumulate) <= tolerance);
        }
}

TEST_CASE("matmuls of no elements give zeros or add nothing") {
  for (const DType type : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    CHECK(error_of({Transpose::no, Transpose::no, 3, 2, 0}, type, false) == 0);  // sums of nothing: zeros
    CHECK(error_of({Transpose::no, Transpose::yes, 3, 2, 0}, type, true) == 0);  // nothing is added
    CHECK(error_of({Transpose::no, Transpose::no, 0, 2, 3}, type, false) == 0);
  }
}

TEST_CASE("bf16 products want the scratch that they say") {
  Block x(2 * 9), scratch(host_matmul_scratch_bytes(DType::bf16, 3, 3, 3)), small(4);
  CHECK(scratch.view().bytes == 3 * 9 * 4);
  CHECK(host_matmul_scratch_bytes(DType::bf16, 1 << 20, 1 << 20, 1 << 20) == 3 << 20);
  CHECK(host_matmul_scratch_bytes(DType::f32, 512, 512, 512) == 0);
  const auto multiply = [&](BufferView s) {
    host_kernel_set().matmul(DType::bf16, Transpose::no, Transpose::no, 3, 3, 3, x.view().data, x.view().data,
                             x.view().data, false, s);
  };
  CHECK_NOTHROW(multiply(scratch.view()));
  CHECK_THROWS_AS(multiply(small.view()), MachineError);
  CHECK_THROWS_AS(multiply({}), MachineError);
}

// Two ranks multiply at once: the same bits as alone, and the library keeps to the threads that call it.
TEST_CASE("products of several ranks run on the threads that ask for them") {
  const std::int64_t n = 600;
  const Numbers x = random_numbers(n * n, 1);
  Block a = encode(DType::f32, x), alone(n * n * 4), c[2] = {Block(n * n * 4), Block(n * n * 4)};
  const auto multiply = [&](BufferView to) {
    host_kernel_set().matmul(DType::f32, Transpose::no, Transpose::yes, n, n, n, a.view().data, a.view().data, to.data,
                             false, {});
  };
  multiply(alone.view());
  CHECK(library_threads() == 1);
  int threads[2] = {0, 0};
  {
    std::vector<std::jthread> ranks;
    for (int r = 0; r < 2; ++r)
      ranks.emplace_back([&, r] {
        for (int i = 0; i < 4; ++i) multiply(c[r].view());
        threads[r] = library_threads();
      });
  }
  CHECK(threads[0] == 1);
  CHECK(threads[1] == 1);
  for (Block& result : c) CHECK(decode(DType::f32, result.view()) == decode(DType::f32, alone.view()));
  CHECK(!host_matmul_library().empty());
}

TEST_CASE("products take no more heap than they say") {
  for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
    const std::int64_t n = 600;
    Block a(n * n * size_of(type)), b(n * n * size_of(type)), c(n * n * size_of(type)),
        scratch(host_matmul_scratch_bytes(type, n, n, n));
    host::heap_meter_begin();
    host_kernel_set().matmul(type, Transpose::yes, Transpose::no, n, n, n, a.view().data, b.view().data, c.view().data,
                             false, scratch.view());
    CHECK(host::heap_meter_end() <= host_matmul_library_workspace(n));
  }
}

// 2 ulp of fp32 are 2.4e-7 relative.
TEST_CASE("the vectorised exponential") {
  for (int i = -8700; i <= 8800; ++i) {
    const float x = static_cast<float>(i) / 100.0f;
    const double truth = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(static_cast<double>(exp_of(x)) - truth) <= 2.4e-7 * truth);
  }
  CHECK(exp_of(0.0f) == 1.0f);
  CHECK(exp_of(-std::numeric_limits<float>::infinity()) < 1e-37f);
  CHECK(exp_of(1e30f) > 1e38f);
  CHECK(std::isfinite(exp_of(1e30f)));
  CHECK(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}
