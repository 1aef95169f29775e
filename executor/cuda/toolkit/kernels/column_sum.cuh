// Sums over rows, column by column: gradients of biases and of norms' weights. The same bits every time: parts of rows
// are summed in a fixed order into scratch, then the parts in order.
#pragma once

#include "executor/backend.h"
#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "models/implementations/native_cuda.h"

namespace fsdp::cuda {

inline constexpr unsigned kColumnThreads = 32, kRowsAtOnce = 8;  // of a block of column_parts_kernel

// parts[p, c] = sum over rows of part p of term(row, c). A thread has kCount columns, which divides their number.
template <class M, int kCount, class Term>
__global__ void column_parts_kernel(std::int64_t rows, std::int64_t columns, std::int64_t rows_of_part, M* parts,
                                    Term term) {
  __shared__ M sums[kRowsAtOnce][kColumnThreads * kCount + 1];
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) * kColumnThreads + threadIdx.x) * kCount;
  const std::int64_t begin = blockIdx.y * rows_of_part, end = begin + rows_of_part < rows ? begin + rows_of_part : rows;
  Pack<M, kCount> sum{};
  if (column < columns)
    for (std::int64_t r = begin + threadIdx.y; r < end; r += kRowsAtOnce) {
      const Pack<M, kCount> terms = term.template at<kCount>(r, column);
      for (int k = 0; k < kCount; ++k) sum.at[k] += terms.at[k];
    }
  for (int k = 0; k < kCount; ++k) sums[threadIdx.y][threadIdx.x * kCount + k] = sum.at[k];
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int k = 0; k < kCount; ++k) {
    for (unsigned y = 1; y < kRowsAtOnce; ++y) sum.at[k] += sums[y][threadIdx.x * kCount + k];
    parts[blockIdx.y * columns + column + k] = sum.at[k];
  }
}

template <class T>
__global__ void column_finish_kernel(const Math<T>* parts, std::int64_t count, std::int64_t columns, T* to,
                                     bool accumulate) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  Math<T> sum = 0;
  for (std::int64_t p = 0; p < count; ++p) sum += parts[p * columns + column];
  put(to[column], sum, accumulate);
}

// to[c] (+)= sum over rows of term(row, c). `parts`: `count` x columns.
template <class T, class Term, class Launch>
void launch_column_sum(std::int64_t rows, std::int64_t columns, std::int64_t count, Math<T>* parts, T* to,
                       bool accumulate, const Term& term, const Launch& launch) {
  if (columns == 0) return;
  const std::int64_t rows_of_part = (rows + count - 1) / count;
  with_packs<kPack<T>>(columns % kPack<T> == 0 && term.aligned(), [&](auto columns_of_thread) {
    constexpr int c = decltype(columns_of_thread)::value;
    constexpr std::int64_t of_block = std::int64_t{kColumnThreads} * c;
    launch({static_cast<unsigned>((columns + of_block - 1) / of_block), static_cast<unsigned>(count)},
           {kColumnThreads, kRowsAtOnce}, 0, column_parts_kernel<Math<T>, c, Term>, rows, columns, rows_of_part, parts,
           term);
  });
  launch({static_cast<unsigned>((columns + kThreads - 1) / kThreads)}, {kThreads}, 0, column_finish_kernel<T>,
         static_cast<const Math<T>*>(parts), count, columns, to, accumulate);
}

// Of a matrix itself: the gradient of a bias.
template <class T>
struct ValueTerm {
  const T* x;
  std::int64_t columns;
  [[nodiscard]] bool aligned() const { return aligned_to_16(x); }
  template <int kCount>
  __device__ Pack<Math<T>, kCount> at(std::int64_t row, std::int64_t column) const {
    const Pack<T, kCount> p = load_pack<kCount>(x + row * columns + column);
    Pack<Math<T>, kCount> terms;
    for (int k = 0; k < kCount; ++k) terms.at[k] = load(p.at[k]);
    return terms;
  }
};

// The gradient of a linear layer's bias: to[c] (+)= sum over rows of from[row, c], in as many parts as `scratch` has
// room for.
template <class Launch>
void launch_bias_gradient(DType type, const void* from, std::int64_t rows, std::int64_t columns, void* to,
                          bool accumulate, BufferView scratch, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t fitting =
        columns == 0 ? 1 : scratch.bytes / (columns * static_cast<std::int64_t>(sizeof(Math<T>)));
    if (fitting < 1) throw MachineError("column_sum: no room for " + std::to_string(columns) + " partial sums");
    launch_column_sum<T>(rows, columns, std::min(column_sum_parts(rows), fitting),
                         reinterpret_cast<Math<T>*>(scratch.data), static_cast<T*>(to), accumulate,
                         ValueTerm<T>{static_cast<const T*>(from), columns}, launch);
  });
}

}  // namespace fsdp::cuda
