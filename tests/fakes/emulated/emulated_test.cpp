// The emulator itself: kernels with known answers, the fragments of the matrix units against their definition, and
// planted mistakes.
// First: it defines what .cuh files take for granted.
#include "tests/fakes/emulated/cuda.h"

#include <doctest/doctest.h>

#include "executor/cuda/toolkit/kernels/reduce.cuh"

using namespace fsdp;
using namespace fsdp::cuda;
using fsdp::emulation::emulate;
using fsdp::emulation::EmulationError;

namespace {

// All warps but the last may hold whatever order: integers add exactly.
__global__ void sum_kernel(const float* x, float* sums, int n) {
  float sum = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < static_cast<unsigned>(n); i += gridDim.x * blockDim.x)
    sum += x[i];
  sum = block_sum(sum);
  const float most = block_reduce<Largest>(static_cast<float>(threadIdx.x), 0.0f);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum + (most == static_cast<float>(blockDim.x - 1) ? 0.0f : 1e9f);
}

__global__ void transpose_kernel(const int* x, int* y, int rows, int columns, bool forget_the_barrier) {
  int* tile = dynamic_shared<int>();
  const int c = static_cast<int>(blockIdx.x * 16 + threadIdx.x), r = static_cast<int>(blockIdx.y * 16 + threadIdx.y);
  if (r < rows && c < columns) tile[threadIdx.y * 17 + threadIdx.x] = x[r * columns + c];
  if (!forget_the_barrier) __syncthreads();
  const int to_c = static_cast<int>(blockIdx.y * 16 + threadIdx.x),
            to_r = static_cast<int>(blockIdx.x * 16 + threadIdx.y);
  if (to_r < columns && to_c < rows) y[to_r * rows + to_c] = tile[threadIdx.x * 17 + threadIdx.y];
}

std::vector<int> transposed(int rows, int columns, bool forget_the_barrier) {
  std::vector<int> x(static_cast<std::size_t>(rows * columns)), y(x.size(), -7);
  std::iota(x.begin(), x.end(), 0);
  const dim3 grid{static_cast<unsigned>(columns + 15) / 16, static_cast<unsigned>(rows + 15) / 16};
  emulate(grid, {16, 16}, 16 * 17 * sizeof(int),
          [&] { transpose_kernel(x.data(), y.data(), rows, columns, forget_the_barrier); });
  return y;
}

std::string refusal(dim3 block, std::size_t shared, const std::function<void()>& kernel) {
  try {
    emulate({1}, block, shared, kernel);
  } catch (const EmulationError& e) {
    return e.what();
  }
  return "";
}

bool mentions(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Numbers that bf16 and fp16 hold and whose products of 16 sum exactly in fp32.
float small_integer(std::mt19937& random) { return static_cast<float>(static_cast<int>(random() % 17) - 8); }

std::uint16_t bits(BFloat16, float x) { return to_bfloat16(x).bits; }
std::uint16_t bits(Float16, float x) { return to_float16(x).bits; }

// D = A B by one warp: A row-major and B column-major as 16-bit numbers in shared memory, read by ldmatrix or by the
// definition of fragments.
template <class T>
__global__ void matmul_kernel(const std::uint16_t* a, const std::uint16_t* b, float* d, bool by_ldmatrix,
                              bool b_row_major) {
  std::uint16_t *sa = dynamic_shared<std::uint16_t>(), *sb = sa + 256;
  for (unsigned i = threadIdx.x; i < 256; i += 32) sa[i] = a[i];
  for (unsigned i = threadIdx.x; i < 128; i += 32) sb[i] = b[i];
  __syncthreads();
  const unsigned lane = threadIdx.x, g = lane / 4, t = lane % 4;
  std::uint32_t fa[4], fb[2];
  if (by_ldmatrix) {
    ldmatrix_x4(fa, sa + (lane % 16) * 16 + lane / 16 * 8);
    if (b_row_major) ldmatrix_x2_transposed(fb, sb + (lane % 16) * 8);
    else ldmatrix_x2(fb, sb + (lane % 8) * 16 + lane / 8 % 2 * 8);
  } else {
    const auto pair = [](std::uint16_t low, std::uint16_t high) {
      return static_cast<std::uint32_t>(low) | static_cast<std::uint32_t>(high) << 16;
    };
    const auto at_a = [&](unsigned r, unsigned c) { return pair(sa[r * 16 + c], sa[r * 16 + c + 1]); };
    const auto at_b = [&](unsigned k) {
      return b_row_major ? pair(sb[k * 8 + g], sb[(k + 1) * 8 + g]) : pair(sb[g * 16 + k], sb[g * 16 + k + 1]);
    };
    fa[0] = at_a(g, 2 * t), fa[1] = at_a(g + 8, 2 * t), fa[2] = at_a(g, 2 * t + 8), fa[3] = at_a(g + 8, 2 * t + 8);
    fb[0] = at_b(2 * t), fb[1] = at_b(2 * t + 8);
  }
  float fd[4] = {0.5f, 0.5f, 0.5f, 0.5f};
  mma_16x8x16<T>(fd, fa, fb);
  d[g * 8 + 2 * t] = fd[0], d[g * 8 + 2 * t + 1] = fd[1];
  d[(g + 8) * 8 + 2 * t] = fd[2], d[(g + 8) * 8 + 2 * t + 1] = fd[3];
}

template <class T>
void check_matmuls() {
  std::mt19937 random(11);
  for (const bool by_ldmatrix : {false, true})
    for (const bool b_row_major : {false, true}) {
      float A[16][16], B[16][8];
      std::vector<std::uint16_t> a(256), b(128);
      for (std::size_t r = 0; r < 16; ++r)
        for (std::size_t k = 0; k < 16; ++k) a[r * 16 + k] = bits(T{}, A[r][k] = small_integer(random));
      for (std::size_t k = 0; k < 16; ++k)
        for (std::size_t c = 0; c < 8; ++c)
          b[b_row_major ? k * 8 + c : c * 16 + k] = bits(T{}, B[k][c] = small_integer(random));
      std::vector<float> d(128, std::nanf(""));
      emulate({1}, {32}, 384 * 2, [&] { matmul_kernel<T>(a.data(), b.data(), d.data(), by_ldmatrix, b_row_major); });
      for (std::size_t r = 0; r < 16; ++r)
        for (std::size_t c = 0; c < 8; ++c) {
          float sum = 0.5f;
          for (std::size_t k = 0; k < 16; ++k) sum += A[r][k] * B[k][c];
          CHECK(d[r * 8 + c] == sum);
        }
    }
}

}  // namespace

TEST_CASE("a reduction over blocks of any number of warps") {
  for (const unsigned threads : {32u, 64u, 96u, 1024u})
    for (const int n : {1, 31, 1000, 4097}) {
      std::vector<float> x(static_cast<std::size_t>(n)), sums(3, std::nanf(""));
      std::iota(x.begin(), x.end(), 1.0f);
      emulate({3}, {threads}, 0, [&] { sum_kernel(x.data(), sums.data(), n); });
      CHECK(sums[0] + sums[1] + sums[2] == static_cast<float>(n) * static_cast<float>(n + 1) / 2);
    }
}

TEST_CASE("a transpose through shared memory, and the same without its barrier") {
  const std::vector<int> y = transposed(37, 50, false);
  bool right = true;
  for (int r = 0; r < 37; ++r)
    for (int c = 0; c < 50; ++c) right = right && y[static_cast<std::size_t>(c * 37 + r)] == r * 50 + c;
  CHECK(right);
  CHECK(transposed(37, 50, true) != y);
}

TEST_CASE("shuffles and votes give the known answers") {
  std::vector<int> got(32 * 6, -1);
  emulate({1}, {32}, 0, [&] {
    const int lane = static_cast<int>(threadIdx.x), x = 100 + lane;
    int* mine = got.data() + lane * 6;
    mine[0] = __shfl_sync(0xffffffffu, x, 5);
    mine[1] = __shfl_sync(0xffffffffu, x, lane + 1, 8);
    mine[2] = __shfl_xor_sync(0xffffffffu, x, 3);
    mine[3] = __shfl_up_sync(0xffffffffu, x, 2);
    mine[4] = __shfl_down_sync(0xffffffffu, x, 30);
    if (lane < 16) mine[5] = static_cast<int>(__ballot_sync(0xffffu, lane % 3 == 0));
    else mine[5] = __all_sync(0xffff0000u, lane >= 16) + 2 * __any_sync(0xffff0000u, lane == 3);
  });
  for (int l = 0; l < 32; ++l) {
    const int* mine = got.data() + l * 6;
    CHECK(mine[0] == 105);
    CHECK(mine[1] == 100 + l / 8 * 8 + (l + 1) % 8);
    CHECK(mine[2] == 100 + (l ^ 3));
    CHECK(mine[3] == 100 + (l >= 2 ? l - 2 : l));
    CHECK(mine[4] == 100 + (l < 2 ? l + 30 : l));
    CHECK(mine[5] == (l < 16 ? 0x9249 : 1));  // bits 0, 3, 6, 9, 12, 15
  }
}

TEST_CASE("atomics add up, whatever the order of threads") {
  int count = 0;
  float sum = 0;
  emulate({4, 2}, {8, 4, 2}, 0, [&] {
    atomicAdd(&count, 1);
    atomicAdd(&sum, static_cast<float>(threadIdx.z));
  });
  CHECK(count == 512);
  CHECK(sum == 256.0f);
}

TEST_CASE("matrix products, every element of every fragment, with and without ldmatrix") {
  check_matmuls<BFloat16>();
  check_matmuls<Float16>();
}

TEST_CASE("ldmatrix of four matrices and its transpose give every element back") {
  std::vector<std::uint32_t> got(32 * 8);
  emulate({1}, {32}, 4 * 128, [&] {
    std::uint16_t* rows = dynamic_shared<std::uint16_t>();
    for (unsigned i = 0; i < 8; ++i) rows[threadIdx.x * 8 + i] = static_cast<std::uint16_t>(threadIdx.x * 8 + i);
    __syncthreads();
    std::uint32_t r[4], t[4];
    ldmatrix_x4(r, rows + threadIdx.x * 8);
    ldmatrix_x4_transposed(t, rows + threadIdx.x * 8);
    for (unsigned m = 0; m < 4; ++m) got[threadIdx.x * 8 + m] = r[m], got[threadIdx.x * 8 + 4 + m] = t[m];
  });
  for (std::uint32_t l = 0; l < 32; ++l)
    for (std::uint32_t m = 0; m < 4; ++m) {
      const std::uint32_t first = m * 64 + l / 4 * 8 + l % 4 * 2, down = m * 64 + l % 4 * 16 + l / 4;
      CHECK(got[l * 8 + m] == (first | (first + 1) << 16));
      CHECK(got[l * 8 + 4 + m] == (down | (down + 8) << 16));
    }
}

TEST_CASE("asynchronous copies arrive with their wait, not before") {
  struct alignas(16) Four {
    float x[4];
  };
  std::vector<Four> from(64);
  for (std::size_t i = 0; i < 64; ++i) from[i] = {{static_cast<float>(i), 1, 2, 3}};
  std::vector<float> early(32), first(32), second(32), absent(32);
  emulate({1}, {32}, 3 * 32 * 16, [&] {
    Four* to = dynamic_shared<Four>();
    const unsigned t = threadIdx.x;
    copy_async_16(to + t, from.data() + t);
    copy_async_commit();
    copy_async_16(to + 32 + t, from.data() + 32 + t);
    copy_async_16(to + 64 + t, nullptr, false);
    copy_async_commit();
    early[t] = to[t].x[0];
    copy_async_wait<1>();
    first[t] = to[t].x[0];
    early[t] = early[t] != early[t] ? to[32 + t].x[0] : 0;
    copy_async_wait<0>();
    second[t] = to[32 + t].x[0], absent[t] = to[64 + t].x[3];
  });
  for (std::size_t t = 0; t < 32; ++t) {
    CHECK(std::isnan(early[t]));
    CHECK(first[t] == static_cast<float>(t));
    CHECK(second[t] == static_cast<float>(32 + t));
    CHECK(absent[t] == 0);
  }
}

TEST_CASE("threads that wait for each other are found") {
  CHECK(mentions(refusal({64}, 0,
                         [] {
                           if (threadIdx.x != 40) __syncthreads();
                         }),
                 "thread 40 has exited"));
  const auto two_barriers = [] {
    if (threadIdx.x < 32) __syncthreads();
    else __syncthreads();
  };
  CHECK(mentions(refusal({64}, 0, two_barriers), "wait for each other"));
  CHECK(mentions(refusal({32}, 0,
                         [] {
                           if (threadIdx.x != 3) (void)__shfl_sync(0xffffffffu, 1, 0);
                         }),
                 "thread 3 has exited"));
  CHECK(mentions(refusal({64}, 0,
                         [] {
                           if (threadIdx.x == 7) __syncthreads();
                           else if (threadIdx.x < 32) __syncwarp();
                           else __syncthreads();
                         }),
                 "is in __syncwarp"));
  CHECK(mentions(refusal({32}, 0, [] { (void)__shfl_sync(0xffffu, 1, 0); }), "its own lane is not in"));
  CHECK(mentions(refusal({32}, 0,
                         [] {
                           if (threadIdx.x < 4) (void)__shfl_sync(0xfu, 1, 9);
                         }),
                 "reads lane 9"));
  CHECK(mentions(refusal({16}, 0, [] { __syncwarp(); }), "beyond the block"));
}

TEST_CASE("writes beside the dynamic shared memory are found, and what nobody wrote is not a number") {
  CHECK(mentions(refusal({32}, 64, [] { dynamic_shared<float>()[threadIdx.x] = 1; }), "at 64"));
  CHECK(mentions(refusal({32}, 64,
                         [] {
                           if (threadIdx.x == 0) dynamic_shared<float>()[-1] = 1;
                         }),
                 "at -4"));
  CHECK(refusal({16}, 64, [] { dynamic_shared<float>()[threadIdx.x] = 1; }).empty());
  float x = 0;
  emulate({2}, {1}, 4, [&] {
    x = dynamic_shared<float>()[0];
    dynamic_shared<float>()[0] = 1;
  });
  CHECK(std::isnan(x));
  CHECK(mentions(refusal({32}, 640,
                         [] {
                           std::uint32_t r[4];
                           ldmatrix_x4(r, dynamic_shared<std::uint16_t>() + threadIdx.x * 8 + 4);
                         }),
                 "not aligned"));
}

TEST_CASE("one seed, one order; another seed, another") {
  const auto order = [](std::uint64_t seed) {
    std::vector<unsigned> seen;
    emulate(
        {2}, {33}, 0, [&] { seen.push_back(blockIdx.x * 100 + threadIdx.x); }, seed);
    return seen;
  };
  CHECK(order(1) == order(1));
  CHECK(order(1) != order(2));
}
