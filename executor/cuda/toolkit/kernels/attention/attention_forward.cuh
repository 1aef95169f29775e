// Attention forward on tensor cores. A block takes 128 queries of one head and passes over the keys they see, a tile at
// a time, with the next tile on its way; each warp has 32 queries. The softmax is kept online: sums so far belong to
// the largest score so far, and are scaled down when a larger one comes. Scores are in units of log 2, so that
// exponentials are powers of two.
#pragma once

#include "executor/cuda/toolkit/kernels/attention/attention_tiles.cuh"

namespace fsdp::cuda {

template <int DIM>
struct ForwardTiles {
  static constexpr int kRows = 2;  // 16-row pieces of a warp: what it loads of K and V serves both
  static constexpr int kQueries = 16 * kRows * kAttentionWarps;    // of a block
  static constexpr int kKeys = 4096 / DIM;                         // of a tile: K and V take 8 KiB each, twice
  static constexpr int kBytes = 2 * DIM * (kQueries + 4 * kKeys);  // of shared memory: 48 KiB for 64, 64 KiB for 128
};

// Largest score and sum of exponentials of the rows that a lane has a part in: g and g + 8 of each piece.
template <int ROWS>
struct Softmax {
  float most[ROWS][2], sum[ROWS][2];
};

// Sums of a row are spread over the four lanes that share it.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Raw dot products become scores, in units of log 2; what is not seen becomes -infinity.
template <int ROWS, int PIECES>
__device__ void mask_scores(Sums<ROWS, PIECES>& s, const Mask<float>& mask, float scale, int query, int key) {
  const bool plain = mask.plain(query, 16 * ROWS, key, 8 * PIECES);
  const int lane = lane_id();
  FSDP_UNROLL for (int r = 0; r < ROWS; ++r) FSDP_UNROLL for (int n = 0; n < PIECES; ++n)
      FSDP_UNROLL for (int e = 0; e < 4; ++e) {
    float& x = s.at[r][n][e];
    x *= scale;
    if (plain) continue;
    const int i = query + 16 * r + lane / 4 + e / 2 * 8, j = key + 8 * n + lane % 4 * 2 + e % 2;
    x = mask.sees(i, j) ? mask.lowered(x, i, j) : -INFINITY;
  }
}

// Scores become exponentials under the new largest score; the sums and the output so far follow.
template <int ROWS, int PIECES, int DIM_PIECES>
__device__ void online_softmax(Sums<ROWS, PIECES>& s, Softmax<ROWS>& state, Sums<ROWS, DIM_PIECES>& out) {
  FSDP_UNROLL for (int r = 0; r < ROWS; ++r) FSDP_UNROLL for (int half = 0; half < 2; ++half) {
    float most = state.most[r][half];
    FSDP_UNROLL for (int n = 0; n < PIECES; ++n) most =
        fmaxf(most, fmaxf(s.at[r][n][2 * half], s.at[r][n][2 * half + 1]));
    most = quad_max(most);
    const float shift = most == -INFINITY ? 0.0f : most;  // a row that has seen nothing yet
    const float before = power_of_two(state.most[r][half] - shift);
    state.most[r][half] = most;
    float sum = 0.0f;
    FSDP_UNROLL for (int n = 0; n < PIECES; ++n) FSDP_UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
      s.at[r][n][e] = power_of_two(s.at[r][n][e] - shift);
      sum += s.at[r][n][e];
    }
    state.sum[r][half] = state.sum[r][half] * before + sum;
    FSDP_UNROLL for (int n = 0; n < DIM_PIECES; ++n) {
      out.at[r][n][2 * half] *= before;
      out.at[r][n][2 * half + 1] *= before;
    }
  }
}

// out and lse of the 16 ROWS queries from `query` on.
template <class T, int ROWS, int DIM_PIECES>
__device__ void finish_rows(Sums<ROWS, DIM_PIECES>& out, const Softmax<ROWS>& state, T* to, std::int64_t stride,
                            float* lse, int query, int length) {
  FSDP_UNROLL for (int r = 0; r < ROWS; ++r) {
    FSDP_UNROLL for (int half = 0; half < 2; ++half) {
      const float sum = quad_sum(state.sum[r][half]), inverse = 1.0f / sum;
      FSDP_UNROLL for (int n = 0; n < DIM_PIECES; ++n) {
        out.at[r][n][2 * half] *= inverse;
        out.at[r][n][2 * half + 1] *= inverse;
      }
      const int row = query + 16 * r + lane_id() / 4 + 8 * half;
      if (lse != nullptr && row < length && lane_id() % 4 == 0) lse[row] = state.most[r][half] * kLn2 + std::log(sum);
    }
    put_rows(out.at[r], 1.0f, to, stride, query + 16 * r, length, false);
  }
}

// Grid: blocks of queries, heads, sequences. The last queries, which see the most keys, go first.
template <class T, int DIM>
__global__ void __launch_bounds__(kAttentionThreads, 2) attention_forward_tiles(AttentionForward a) {
  using Tiles = ForwardTiles<DIM>;
  constexpr int kRows = Tiles::kRows, kKeys = Tiles::kKeys, kStep = kKeys * DIM;
  const AttentionSizes& z = a.sizes;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z),
            shared_by = z.heads / z.kv_heads;
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kQueries;
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 * kRows;  // of the tile of queries, the warp's first
  const T* k = head_of(static_cast<const T*>(a.k), z, z.kv_row, sequence, head / shared_by);
  const T* v = head_of(static_cast<const T*>(a.v), z, z.kv_row, sequence, head / shared_by);

  T* const memory = dynamic_shared<T>();
  const Tile<T, DIM> q_tile{memory};
  const auto k_tile = [=](int at) { return Tile<T, DIM>{memory + Tiles::kQueries * DIM + at * kStep}; };
  const auto v_tile = [=](int at) { return Tile<T, DIM>{memory + Tiles::kQueries * DIM + (2 + at) * kStep}; };

  const Mask<float> mask = mask_of(z, head, kLog2e);
  const float scale = kLog2e / std::sqrt(static_cast<float>(DIM));
  const Range keys = keys_seen(z, first, Tiles::kQueries);
  const int begin = keys.begin / kKeys * kKeys;
  Sums<kRows, DIM / 8> out;
  out.clear();
  Softmax<kRows> state;
  FSDP_UNROLL for (int r = 0; r < 2 * kRows; ++r) state.most[r / 2][r % 2] = -INFINITY, state.sum[r / 2][r % 2] = 0.0f;

  const auto fetch = [&](int key, int at) {
    copy_rows<kKeys>(k_tile(at), k, z.kv_row, key, z.length);
    copy_rows<kKeys>(v_tile(at), v, z.kv_row, key, z.length);
    copy_async_commit();
  };
  copy_rows<Tiles::kQueries>(q_tile, head_of(static_cast<const T*>(a.q), z, z.q_row, sequence, head), z.q_row, first,
                             z.length);
  fetch(begin, 0);
  int at = 0;
  for (int key = begin; key < keys.end; key += kKeys, at ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // this tile has come, and nobody reads the one before
    if (key + kKeys < keys.end) fetch(key + kKeys, at ^ 1);
    if (mask.empty(first + row, 16 * kRows, key, kKeys)) continue;
    Sums<kRows, kKeys / 8> s;
    score_matmul(s, q_tile, row, k_tile(at));
    mask_scores(s, mask, scale, first + row, key);
    online_softmax(s, state, out);
    add_matmul(out, s, v_tile(at));
  }
  float* const lse = static_cast<float*>(a.lse);
  finish_rows(out, state, head_of(static_cast<T*>(a.out), z, z.out_row(), sequence, head), z.out_row(),
              lse == nullptr ? nullptr : lse + (std::int64_t{sequence} * z.heads + head) * z.length, first + row,
              z.length);
}

}  // namespace fsdp::cuda
