// What the tensor-core attention kernels share: tiles in shared memory, and matmuls of a warp over them.
//
// A warp multiplies 16 x 8 x 16 pieces (primitives.cuh). Lane l holds, with g = l / 4 and t = l % 4, of a 16 x 8 piece
// of sums the elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1). Two such pieces side by side, rounded to the
// storage type, are already the left operand of the next matmul: probabilities never pass through memory.
#pragma once

#include <cstdint>

#include "executor/arithmetic/element.h"
#include "executor/cuda/toolkit/kernels/attention/attention_lanes.cuh"
#include "executor/cuda/toolkit/kernels/attention/attention_mask.cuh"
#include "executor/cuda/toolkit/kernels/primitives.cuh"

namespace fsdp::cuda {

inline constexpr int kAttentionWarps = 4;
inline constexpr int kAttentionThreads = 32 * kAttentionWarps;

// Rows of DIM 16-bit elements. The 16-byte piece p of row r lies at place p ^ (r & 7): the eight rows that a matrix
// load touches at once are in different banks.
template <class T, int DIM>
struct Tile {
  static constexpr int kPieces = DIM / 8;  // of a row
  T* data;
  __device__ T* piece(int row, int p) const { return data + row * DIM + ((p ^ (row & 7)) * 8); }
};

// Rows [first, first + ROWS) of one head, from rows of `stride` elements; rows from `length` on become zeros.
// Asynchronous.
template <int ROWS, class T, int DIM>
__device__ void copy_rows(Tile<T, DIM> to, const T* from, std::int64_t stride, int first, int length) {
  constexpr int kPieces = Tile<T, DIM>::kPieces;
  static_assert(ROWS * kPieces % kAttentionThreads == 0);
  FSDP_UNROLL for (int n = 0; n < ROWS * kPieces / kAttentionThreads; ++n) {
    const int c = static_cast<int>(threadIdx.x) + n * kAttentionThreads, row = c / kPieces, p = c % kPieces;
    const bool there = first + row < length;
    copy_async_16(to.piece(row, p), from + (there ? first + row : 0) * stride + p * 8, there);
  }
}

// Operands of a matmul, from a tile: `row` and `column` are where the piece begins in the tile.
template <class T, int DIM>
__device__ void load_left(std::uint32_t (&a)[4], Tile<T, DIM> x, int row, int column) {  // 16 x 16
  const int lane = lane_id();
  ldmatrix_x4(a, x.piece(row + lane % 16, column / 8 + lane / 16));
}
// Two 16 x 8 pieces of x^T (contraction over the columns of x): rows [row, row + 16) of x are the 16 columns of the
// result.
template <class T, int DIM>
__device__ void load_right_transposed(std::uint32_t (&b)[2][2], Tile<T, DIM> x, int row, int column) {
  const int lane = lane_id();
  std::uint32_t r[4];
  ldmatrix_x4(r, x.piece(row + lane / 16 * 8 + lane % 8, column / 8 + lane / 8 % 2));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}
// Two 16 x 8 pieces of x (contraction over the rows of x): columns [column, column + 16) of x are those of the result.
template <class T, int DIM>
__device__ void load_right(std::uint32_t (&b)[2][2], Tile<T, DIM> x, int row, int column) {
  const int lane = lane_id();
  std::uint32_t r[4];
  ldmatrix_x4_transposed(r, x.piece(row + lane % 16, column / 8 + lane / 16));
  b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

// Sums of a warp: ROWS pieces of 16 rows below one another, PIECES of 8 columns side by side.
template <int ROWS, int PIECES>
struct Sums {
  float at[ROWS][PIECES][4];
  __device__ void clear() {
    FSDP_UNROLL for (int r = 0; r < ROWS; ++r) FSDP_UNROLL for (int n = 0; n < PIECES; ++n)
        FSDP_UNROLL for (int e = 0; e < 4; ++e) at[r][n][e] = 0.0f;
  }
};

// sums = x[row .. row + 16 ROWS) y[0 .. 8 PIECES)^T, over all DIM columns.
template <class T, int DIM, int ROWS, int PIECES>
__device__ void score_matmul(Sums<ROWS, PIECES>& sums, Tile<T, DIM> x, int row, Tile<T, DIM> y) {
  sums.clear();
  FSDP_UNROLL for (int k = 0; k < DIM; k += 16) {
    std::uint32_t a[ROWS][4];
    FSDP_UNROLL for (int r = 0; r < ROWS; ++r) load_left(a[r], x, row + 16 * r, k);
    FSDP_UNROLL for (int n = 0; n < PIECES; n += 2) {
      std::uint32_t b[2][2];
      load_right_transposed(b, y, 8 * n, k);
      FSDP_UNROLL for (int r = 0; r < ROWS; ++r) {
        mma_16x8x16<T>(sums.at[r][n], a[r], b[0]);
        mma_16x8x16<T>(sums.at[r][n + 1], a[r], b[1]);
      }
    }
  }
}

// sums += p y, with p of 8 KEYS columns rounded to T and y of 8 KEYS rows.
template <class T, int DIM, int ROWS, int KEYS>
__device__ void add_matmul(Sums<ROWS, DIM / 8>& sums, const Sums<ROWS, KEYS>& p, Tile<T, DIM> y) {
  FSDP_UNROLL for (int k = 0; k < KEYS; k += 2) {
    std::uint32_t a[ROWS][4];
    FSDP_UNROLL for (int r = 0; r < ROWS; ++r) FSDP_UNROLL for (int e = 0; e < 4; ++e) a[r][e] =
        pack_pair<T>(p.at[r][k + e / 2][e % 2 * 2], p.at[r][k + e / 2][e % 2 * 2 + 1]);
    FSDP_UNROLL for (int n = 0; n < DIM / 8; n += 2) {
      std::uint32_t b[2][2];
      load_right(b, y, 8 * k, 8 * n);
      FSDP_UNROLL for (int r = 0; r < ROWS; ++r) {
        mma_16x8x16<T>(sums.at[r][n], a[r], b[0]);
        mma_16x8x16<T>(sums.at[r][n + 1], a[r], b[1]);
      }
    }
  }
}

// Two neighbours of a row: written, or added to what is there.
template <class T>
__device__ void put_pair(T* to, float x, float y, bool add) {
  auto* const pair = reinterpret_cast<Pair<T>*>(to);
  if (add) x += load(pair->low), y += load(pair->high);
  const std::uint32_t bits = pack_pair<T>(x, y);
  *pair = {{static_cast<std::uint16_t>(bits & 0xffffu)}, {static_cast<std::uint16_t>(bits >> 16)}};
}

// Sums of 16 rows of a warp, times `factor`, to rows [row, row + 16) of a head; rows from `length` on are not written.
template <class T, int PIECES>
__device__ void put_rows(const float (&sums)[PIECES][4], float factor, T* to, std::int64_t stride, int row, int length,
                         bool add) {
  const int lane = lane_id();
  FSDP_UNROLL for (int half = 0; half < 2; ++half) {
    const int r = row + lane / 4 + 8 * half;
    if (r >= length) continue;
    T* at = to + r * stride + lane % 4 * 2;
    FSDP_UNROLL for (int n = 0; n < PIECES; ++n)
        put_pair(at + 8 * n, sums[n][2 * half] * factor, sums[n][2 * half + 1] * factor, add);
  }
}

}  // namespace fsdp::cuda
