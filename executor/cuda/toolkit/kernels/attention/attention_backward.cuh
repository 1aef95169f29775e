// Attention backward on tensor cores, in two passes that make the probabilities again from the kept log-sum-exps:
//
//   gradients of queries: a block keeps 64 queries (q, do) and passes over the keys they see;
//   gradients of keys:    a block keeps 64 keys (k, v) and passes over the queries that see them, of every head that
//                         shares the keys.
//
// Each number is summed by one thread in one order. Both need rowsum(do o) of each query: attention_row_sums
// (attention_simple.cuh). In the second pass scores are held with keys as rows, so that they are left operands of dv =
// p^T do and dk = ds^T q as they are.
#pragma once

#include "executor/cuda/toolkit/kernels/attention/attention_tiles.cuh"

namespace fsdp::cuda {

template <int DIM>
struct BackwardTiles {
  static constexpr int kKept = 16 * kAttentionWarps;  // rows of a block; a warp has 16
  static constexpr int kPassing = 4096 / DIM;         // rows of a tile that passes: 8 KiB, of two tensors, twice
  static constexpr int kTileBytes = 2 * DIM * (2 * kKept + 4 * kPassing);
  static constexpr int kBytes =
      kTileBytes + 2 * 2 * kPassing * 4;  // with lse and sums of queries: 49 KiB for 64, 64.5 KiB for 128
};

// The tiles of a block: two that stay, two that pass, the latter twice.
template <class T, int DIM>
struct BackwardMemory {
  T* memory = dynamic_shared<T>();
  static constexpr int kKept = BackwardTiles<DIM>::kKept * DIM, kPassing = BackwardTiles<DIM>::kPassing * DIM;
  __device__ Tile<T, DIM> kept(int which) const { return {memory + which * kKept}; }
  __device__ Tile<T, DIM> passing(int which, int at) const {
    return {memory + 2 * kKept + (2 * at + which) * kPassing};
  }
  __device__ float* rows(int which, int at) const {  // log-sum-exps, sums
    return reinterpret_cast<float*>(memory + 2 * kKept + 4 * kPassing) +
           (2 * at + which) * BackwardTiles<DIM>::kPassing;
  }
};

// f(element, row, column) for the elements of a lane's 16 x 8 PIECES sums; `index` is the element's place.
template <int PIECES, class F>
__device__ void each_element(Sums<1, PIECES>& s, const F& f) {
  const int lane = lane_id();
  FSDP_UNROLL for (int n = 0; n < PIECES; ++n) FSDP_UNROLL for (int e = 0; e < 4; ++e)
      f(s.at[0][n][e], n, e, lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2);
}

// A raw dot product as probability, given the log-sum-exp of its query in units of log 2.
__device__ inline float probability(float dot, float scale, bool plain, const Mask<float>& mask, int query, int key,
                                    float lse) {
  float x = dot * scale;
  if (!plain) x = mask.sees(query, key) ? mask.lowered(x, query, key) : -INFINITY;
  return power_of_two(x - lse);
}

// Grid: blocks of queries (the last first), heads, sequences.
template <class T, int DIM>
__global__ void __launch_bounds__(kAttentionThreads, 2) attention_query_gradient(AttentionBackward a) {
  using Tiles = BackwardTiles<DIM>;
  constexpr int kKeys = Tiles::kPassing;
  const AttentionSizes& z = a.sizes;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z),
            kv_head = head / (z.heads / z.kv_heads);
  const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * Tiles::kKept,
            row = static_cast<int>(threadIdx.x) / 32 * 16;
  const T* k = head_of(static_cast<const T*>(a.k), z, z.kv_row, sequence, kv_head);
  const T* v = head_of(static_cast<const T*>(a.v), z, z.kv_row, sequence, kv_head);
  const BackwardMemory<T, DIM> m;
  const Tile<T, DIM> q_tile = m.kept(0), do_tile = m.kept(1);

  const Mask<float> mask = mask_of(z, head, kLog2e);
  const float scale = 1.0f / std::sqrt(static_cast<float>(DIM));
  float lse[2], sums[2];  // of the lane's two queries
  FSDP_UNROLL for (int half = 0; half < 2; ++half) {
    const int query = first + row + lane_id() / 4 + 8 * half;
    const std::int64_t at = (std::int64_t{sequence} * z.heads + head) * z.length + query;
    lse[half] = query < z.length ? static_cast<const float*>(a.lse)[at] * kLog2e : 0.0f;
    sums[half] = query < z.length ? static_cast<const float*>(a.sums)[at] : 0.0f;
  }
  const auto fetch = [&](int key, int at) {
    copy_rows<kKeys>(m.passing(0, at), k, z.kv_row, key, z.length);
    copy_rows<kKeys>(m.passing(1, at), v, z.kv_row, key, z.length);
    copy_async_commit();
  };
  copy_rows<Tiles::kKept>(q_tile, head_of(static_cast<const T*>(a.q), z, z.q_row, sequence, head), z.q_row, first,
                          z.length);
  copy_rows<Tiles::kKept>(do_tile, head_of(static_cast<const T*>(a.grad_out), z, z.out_row(), sequence, head),
                          z.out_row(), first, z.length);

  const Range keys = keys_seen(z, first, Tiles::kKept);
  const int begin = keys.begin / kKeys * kKeys;
  Sums<1, DIM / 8> dq;
  dq.clear();
  fetch(begin, 0);
  int at = 0;
  for (int key = begin; key < keys.end; key += kKeys, at ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // this tile has come, and nobody reads the one before
    if (key + kKeys < keys.end) fetch(key + kKeys, at ^ 1);
    if (mask.empty(first + row, 16, key, kKeys)) continue;
    const bool plain = mask.plain(first + row, 16, key, kKeys);
    Sums<1, kKeys / 8> p, ds;
    score_matmul(p, q_tile, row, m.passing(0, at));
    score_matmul(ds, do_tile, row, m.passing(1, at));
    each_element(ds, [&](float& x, int n, int e, int r, int c) {
      x = probability(p.at[0][n][e], scale * kLog2e, plain, mask, first + row + r, key + c, lse[e / 2]) *
          (x - sums[e / 2]);
    });
    add_matmul(dq, ds, m.passing(0, at));
  }
  put_rows(dq.at[0], scale, head_of(static_cast<T*>(a.grad_q), z, z.q_row, sequence, head), z.q_row, first + row,
           z.length, a.add_q);
}

// Grid: blocks of keys (the first, which the most queries see, first), key and value heads, sequences.
template <class T, int DIM>
__global__ void __launch_bounds__(kAttentionThreads, 2) attention_key_gradient(AttentionBackward a) {
  using Tiles = BackwardTiles<DIM>;
  constexpr int kQueries = Tiles::kPassing;
  const AttentionSizes& z = a.sizes;
  const int kv_head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z),
            shared_by = z.heads / z.kv_heads;
  const int first = static_cast<int>(blockIdx.x) * Tiles::kKept, row = static_cast<int>(threadIdx.x) / 32 * 16;
  const BackwardMemory<T, DIM> m;
  const Tile<T, DIM> k_tile = m.kept(0), v_tile = m.kept(1);
  const float scale = 1.0f / std::sqrt(static_cast<float>(DIM));

  const Range queries = queries_seeing(z, first, Tiles::kKept);
  const int begin = queries.begin / kQueries * kQueries, tiles = (queries.end - begin + kQueries - 1) / kQueries;
  const auto head_at = [&](int step) { return kv_head * shared_by + step / tiles; };
  const auto query_at = [&](int step) { return begin + step % tiles * kQueries; };
  const auto fetch = [&](int step, int at) {
    const int head = head_at(step), query = query_at(step);
    copy_rows<kQueries>(m.passing(0, at), head_of(static_cast<const T*>(a.q), z, z.q_row, sequence, head), z.q_row,
                        query, z.length);
    copy_rows<kQueries>(m.passing(1, at), head_of(static_cast<const T*>(a.grad_out), z, z.out_row(), sequence, head),
                        z.out_row(), query, z.length);
    copy_async_commit();
    const int c = static_cast<int>(threadIdx.x);
    if (c >= kQueries) return;
    const bool there = query + c < z.length;
    const std::int64_t of = (std::int64_t{sequence} * z.heads + head) * z.length + query + c;
    m.rows(0, at)[c] = there ? static_cast<const float*>(a.lse)[of] * kLog2e : 0.0f;
    m.rows(1, at)[c] = there ? static_cast<const float*>(a.sums)[of] : 0.0f;
  };
  copy_rows<Tiles::kKept>(k_tile, head_of(static_cast<const T*>(a.k), z, z.kv_row, sequence, kv_head), z.kv_row, first,
                          z.length);
  copy_rows<Tiles::kKept>(v_tile, head_of(static_cast<const T*>(a.v), z, z.kv_row, sequence, kv_head), z.kv_row, first,
                          z.length);

  Sums<1, DIM / 8> dk, dv;
  dk.clear(), dv.clear();
  fetch(0, 0);
  int at = 0;
  for (int step = 0; step < shared_by * tiles; ++step, at ^= 1) {
    copy_async_wait<0>();
    __syncthreads();  // this tile has come, and nobody reads the one before
    if (step + 1 < shared_by * tiles) fetch(step + 1, at ^ 1);
    const int query = query_at(step);
    const Mask<float> mask = mask_of(z, head_at(step), kLog2e);
    if (mask.empty(query, kQueries, first + row, 16)) continue;
    const bool plain = mask.plain(query, kQueries, first + row, 16);
    const float *lse = m.rows(0, at), *sums = m.rows(1, at);
    Sums<1, kQueries / 8> p, ds;
    score_matmul(p, k_tile, row, m.passing(0, at));
    each_element(p, [&](float& x, int, int, int r, int c) {
      x = probability(x, scale * kLog2e, plain, mask, query + c, first + row + r, lse[c]);
    });
    add_matmul(dv, p, m.passing(1, at));
    score_matmul(ds, v_tile, row, m.passing(1, at));
    each_element(ds, [&](float& x, int n, int e, int, int c) { x = p.at[0][n][e] * (x - sums[c]); });
    add_matmul(dk, ds, m.passing(0, at));
  }
  const int last = z.length;
  T* const to_k = head_of(static_cast<T*>(a.grad_k), z, z.kv_row, sequence, kv_head);
  T* const to_v = head_of(static_cast<T*>(a.grad_v), z, z.kv_row, sequence, kv_head);
  if (to_k != nullptr) put_rows(dk.at[0], scale, to_k, z.kv_row, first + row, last, a.add_k);
  if (to_v != nullptr) put_rows(dv.at[0], 1.0f, to_v, z.kv_row, first + row, last, a.add_v);
}

}  // namespace fsdp::cuda
