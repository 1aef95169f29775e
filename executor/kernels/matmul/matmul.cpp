// HostKernels::matmul over the matmuls of the library that CMake chose, and matmuls of bf16 and fp16 in fp32 tiles.
#include "executor/kernels/matmul/matmul.h"

#include <algorithm>

#include "executor/kernels/call.h"
#include "executor/kernels/levels/host_kernels.h"

namespace fsdp {
namespace {

constexpr std::int64_t kTile = 512;  // edge of an fp32 tile: 1 MiB, three of them in use

// rows x columns of a stored matrix, as fp32, densely.
template <class T>
void convert_tile(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t columns, float* to) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) to[r * columns + c] = load(from[r * stride + c]);
}

// The tile [rows, columns] at (row, column) of an operand whose matmul shape is [full_rows, full_columns].
template <class T>
Operand<float> tile(const T* x, Transpose t, std::int64_t full_rows, std::int64_t full_columns, std::int64_t row,
                    std::int64_t column, std::int64_t rows, std::int64_t columns, float* to) {
  if (t == Transpose::yes) {
    convert_tile(x + column * full_rows + row, full_rows, columns, rows, to);
    return {to, rows, t};
  }
  convert_tile(x + row * full_columns + column, full_columns, rows, columns, to);
  return {to, columns, t};
}

// One tile of c: the sum over k in fp32, rounded to T once.
template <class T>
struct Tiled {
  Transpose ta, tb;
  std::int64_t m, n, k;
  const T *a, *b;
  T* c;
  bool accumulate;
  float *a_tile, *b_tile, *c_tile;

  void at(std::int64_t i, std::int64_t j) const {
    const std::int64_t rows = std::min(kTile, m - i), columns = std::min(kTile, n - j);
    if (accumulate) convert_tile(c + i * n + j, n, rows, columns, c_tile);
    else std::fill_n(c_tile, rows * columns, 0.0f);
    for (std::int64_t l = 0; l < k; l += kTile) {
      const std::int64_t depth = std::min(kTile, k - l);
      matmul(rows, columns, depth, 1.0f, tile(a, ta, m, k, i, l, rows, depth, a_tile),
             tile(b, tb, k, n, l, j, depth, columns, b_tile), 1.0f, c_tile, columns);
    }
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t q = 0; q < columns; ++q) store(c[(i + r) * n + j + q], c_tile[r * columns + q]);
  }
};

}  // namespace

std::int64_t host_matmul_scratch_bytes(DType type, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (type != DType::bf16 && type != DType::f16) return 0;
  const std::int64_t a = std::min(m, kTile), b = std::min(n, kTile), c = std::min(k, kTile);
  return 4 * (a * b + b * c + a * c);
}

template <class T>
void multiply(Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, T* c,
              bool accumulate, BufferView scratch) {
  if constexpr (std::is_same_v<T, Math<T>>) {
    matmul(m, n, k, T(1), Operand<T>{a, ta == Transpose::yes ? m : k, ta},
           Operand<T>{b, tb == Transpose::yes ? k : n, tb}, accumulate ? T(1) : T(0), c, n);
  } else {
    check_extent("matrix product", "scratch", 0, scratch, host_matmul_scratch_bytes(DType::bf16, m, n, k), 1);
    float* a_tile = reinterpret_cast<float*>(scratch.data);
    float* b_tile = a_tile + std::min(m, kTile) * std::min(k, kTile);
    float* c_tile = b_tile + std::min(k, kTile) * std::min(n, kTile);
    const Tiled<T> tiles{ta, tb, m, n, k, a, b, c, accumulate, a_tile, b_tile, c_tile};
    for (std::int64_t i = 0; i < m; i += kTile)
      for (std::int64_t j = 0; j < n; j += kTile) tiles.at(i, j);
  }
}

template void multiply<double>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, const double*,
                               const double*, double*, bool, BufferView);
template void multiply<float>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, const float*,
                              const float*, float*, bool, BufferView);
template void multiply<BFloat16>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, const BFloat16*,
                                 const BFloat16*, BFloat16*, bool, BufferView);
template void multiply<Float16>(Transpose, Transpose, std::int64_t, std::int64_t, std::int64_t, const Float16*,
                                const Float16*, Float16*, bool, BufferView);

void HostKernels::matmul(DType type, Transpose ta, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                         const void* a, const void* b, void* c, bool accumulate, BufferView scratch) const {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    multiply<T>(ta, tb, m, n, k, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(c), accumulate,
                scratch);
  });
}

}  // namespace fsdp
