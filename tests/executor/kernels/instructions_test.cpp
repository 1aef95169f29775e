// The kernels' compilations for several instruction sets beside each other, in one process: what rounds once is equal
// bit by bit, what is summed or may be fused differs by roundings. (The other kernel tests run under each of them:
// CMakeLists.txt.)
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "executor/kernels/host_kernel_set.h"
#include "tests/support/kernels_support.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr DType kTypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

Numbers awkward_numbers() {
  Numbers x = random_numbers(1003, 5, 100);  // no multiple of any vector
  const double least = std::numeric_limits<float>::denorm_min(), most = std::numeric_limits<float>::max();
  for (const double v : {0.0, -0.0, least, -least, most, -most, 65504.0, 65520.0, 6.1e-5, 5.9e-8, 1e300, 1e-300})
    x.push_back(v);
  x.push_back(std::numeric_limits<double>::infinity());
  x.push_back(-std::numeric_limits<double>::infinity());
  return x;
}

Numbers converted(const KernelSet& kernels, DType from, DType to, bool accumulate) {
  const Numbers values = awkward_numbers();
  const auto n = static_cast<std::int64_t>(values.size());
  Block source = encode(from, values), target = encode(to, random_numbers(values.size(), 6));
  kernels.convert(from, source.view(), to, target.view(), n, accumulate);
  return decode(to, target.view());
}

bool same_bits(const Numbers& a, const Numbers& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

}  // namespace

TEST_CASE("the best instruction set is used unless another is asked for; the baseline is always there") {
  const auto sets = host_kernel_sets();
  REQUIRE(!sets.empty());
  CHECK(std::string(sets.back()->instructions()) == "baseline");
  const char* asked = std::getenv("FSDP_PLAN_INSTRUCTIONS");
  CHECK(host_kernel_set().instructions() == (asked == nullptr || *asked == 0 ? sets.front()->instructions() : asked));
  for (const HostKernelSet* t : sets) MESSAGE("kernels: " << std::string(t->instructions()));
}

TEST_CASE("conversions and sums of two are the same bits in every instruction set") {
  for (const HostKernelSet* t : host_kernel_sets())
    for (const DType from : kTypes)
      for (const DType to : kTypes)
        for (const bool accumulate : {false, true})
          CHECK_MESSAGE(same_bits(converted(*t, from, to, accumulate),
                                  converted(*host_kernel_sets().back(), from, to, accumulate)),
                        t->instructions(), " ", name(from), " to ", name(to));
}

// 500 sums of products of order 1: each instruction set adds in its own order, at most 500 u of the sum of the absolute
// values; the largest entry stands for that sum within a factor of a few.
TEST_CASE("matrix products, sums of squares and scalings agree to their roundings") {
  const std::int64_t m = 33, n = 17, k = 500;
  const Numbers a = random_numbers(static_cast<std::size_t>(m * k), 1),
                b = random_numbers(static_cast<std::size_t>(k * n), 2);
  for (const auto& [type, tolerance] :
       {std::pair{DType::f64, 1e-13}, {DType::f32, 5e-5}, {DType::bf16, 1.0 / 128}, {DType::f16, 1.0 / 1024}}) {
    std::vector<Numbers> matmuls, squares;
    for (const HostKernelSet* t : host_kernel_sets()) {
      Block ma = encode(type, a), mb = encode(type, b),
            mc = encode(type, Numbers(static_cast<std::size_t>(m * n), 0.0)),
            scratch(host_matmul_scratch_bytes(type, m, n, k));
      t->matmul(type, Transpose::no, Transpose::no, m, n, k, ma.view().data, mb.view().data, mc.view().data, false,
                scratch.view());
      matmuls.push_back(decode(type, mc.view()));
      squares.push_back({sum_of_squares(*t, type, ma.view())});
      t->scale(type, ma.view(), m * k, 1.0 / 3);
      CHECK(distance(decode(type, ma.view()), rounded(type, [&] {
                       Numbers x = rounded(type, a);
                       for (double& v : x) v /= 3;
                       return x;
                     }())) <= tolerance);
    }
    for (const Numbers& p : matmuls) CHECK(distance(p, matmuls.back()) <= tolerance);
    for (const Numbers& s : squares) CHECK(distance(s, squares.back()) <= 1e-12);  // summed in double
  }
}

TEST_CASE("clipping by a norm that is not finite leaves what PyTorch leaves, in every instruction set") {
  // torch 2.15, clip_grad_norm_([1, x, 3], 1.0): x = nan gives [nan, nan, nan], x = inf gives [0, nan, 0].
  const double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
  for (const DType type : kTypes)
    for (const double p : {2.0, 3.0, kInfinity})
      for (const double x : {kNan, kInfinity})
        for (const HostKernelSet* t : host_kernel_sets()) {
          Block a = encode(type, {1, x, 3}), norm(8);
          t->local_norm(type, std::vector<BufferView>{a.view()}, p, norm.view());
          t->clip(type, std::vector<BufferView>{a.view()}, p, 1.0, norm.view());
          const Numbers clipped = decode(type, a.view());
          CHECK(std::isnan(clipped[1]));
          for (const double other : {clipped[0], clipped[2]}) CHECK((std::isnan(x) ? std::isnan(other) : other == 0));
        }
}

TEST_CASE("norms by powers and the largest magnitude are the same bits in every instruction set; NaN propagates") {
  Numbers some = random_numbers(1003, 7), more = random_numbers(77, 8);
  for (const bool nan : {false, true}) {
    if (nan) more[40] = std::numeric_limits<double>::quiet_NaN();
    for (const DType type : kTypes)
      for (const double p : {1.0, 3.0, 2.5, std::numeric_limits<double>::infinity()}) {
        std::vector<double> norms;
        for (const HostKernelSet* t : host_kernel_sets()) {
          Block a = encode(type, some), b = encode(type, more), norm(8);
          const std::vector<BufferView> values = {a.view(), b.view()};
          t->local_norm(type, values, p, norm.view());
          norms.push_back(decode(DType::f64, norm.view())[0]);
          CHECK(std::isnan(norms.back()) == nan);
          CHECK((nan || std::memcmp(&norms.front(), &norms.back(), sizeof(double)) == 0));
        }
      }
  }
}
