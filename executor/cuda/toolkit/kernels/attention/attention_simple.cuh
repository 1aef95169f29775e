// Attention for any head_dim up to 256 and any storage type, without tensor cores: a warp has one query (gradients of
// keys: one key). Lanes take 32 partners at a time, one dot product each; then they take elements of the head and sum
// over those partners.
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/arithmetic/element.h"
#include "executor/cuda/toolkit/kernels/attention/attention_lanes.cuh"
#include "executor/cuda/toolkit/kernels/attention/attention_mask.cuh"
#include "executor/cuda/toolkit/kernels/reduce.cuh"

namespace fsdp::cuda {

inline constexpr int kSimpleWarps = 4, kSimpleThreads = 32 * kSimpleWarps;
inline constexpr int kSlices = kMostAttentionDim / 32;  // elements of a head per lane

template <class M>
struct WarpSpace {
  M row[2][kMostAttentionDim];  // what the warp keeps of its own query or key
  M weight[2][32];              // of the 32 partners at hand
};

// The row of a head as numbers of the arithmetic type, for the whole warp.
template <class T>
__device__ void keep_row(Math<T>* to, const T* from, int dim) {
  for (int i = lane_id(); i < dim; i += 32) to[i] = load(from[i]);
}
template <class T>
__device__ Math<T> dot(const Math<T>* x, const T* y, int dim) {
  Math<T> sum = 0;
  for (int i = 0; i < dim; ++i) sum += x[i] * load(y[i]);
  return sum;
}
// sums[n] += weight[j] * rows[j][lane + 32 n], for j below count.
template <class T>
__device__ void add_rows(Math<T> (&sums)[kSlices], const Math<T>* weight, const T* rows, std::int64_t stride, int count,
                         int dim) {
  FSDP_UNROLL for (int n = 0; n < kSlices; ++n) {
    const int i = lane_id() + 32 * n;
    if (i < dim)
      for (int j = 0; j < count; ++j) sums[n] += weight[j] * load(rows[j * stride + i]);
  }
}
template <class T>
__device__ void put_slices(const Math<T> (&sums)[kSlices], Math<T> factor, T* to, int dim, bool add) {
  FSDP_UNROLL for (int n = 0; n < kSlices; ++n) if (lane_id() + 32 * n < dim)
      put(to[lane_id() + 32 * n], sums[n] * factor, add);
}
__device__ inline int partners(int base, int end) { return end - base < 32 ? end - base : 32; }
__device__ inline int simple_row() {
  return static_cast<int>(blockIdx.x) * kSimpleWarps + static_cast<int>(threadIdx.x) / 32;
}
__device__ inline std::int64_t row_index(const AttentionSizes& z, int sequence, int head, int query) {
  return (std::int64_t{sequence} * z.heads + head) * z.length + query;
}

// Grid: rows by four, heads, sequences; of all kernels below, with heads of keys for the gradient of keys.
template <class T>
__global__ void __launch_bounds__(kSimpleThreads) attention_forward_simple(AttentionForward a) {
  using M = Math<T>;
  __shared__ WarpSpace<M> space[kSimpleWarps];
  WarpSpace<M>& w = space[threadIdx.x / 32];
  const AttentionSizes& z = a.sizes;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z), query = simple_row();
  if (query >= z.length) return;
  const T* q = head_of(static_cast<const T*>(a.q), z, z.q_row, sequence, head) + query * z.q_row;
  const T* k = head_of(static_cast<const T*>(a.k), z, z.kv_row, sequence, head / (z.heads / z.kv_heads));
  const T* v = head_of(static_cast<const T*>(a.v), z, z.kv_row, sequence, head / (z.heads / z.kv_heads));
  const Mask<M> mask = mask_of(z, head, M(1));
  const M scale = M(1) / std::sqrt(M(z.dim));
  keep_row(w.row[0], q, z.dim);
  __syncwarp();

  const Range keys = keys_seen(z, query, 1);  // every one of them is seen
  M most = -INFINITY, sum = 0, out[kSlices] = {};
  for (int base = keys.begin; base < keys.end; base += 32) {
    const int key = base + lane_id();
    M score = -INFINITY;
    if (key < keys.end) score = mask.lowered(dot(w.row[0], k + key * z.kv_row, z.dim) * scale, query, key);
    const M above = warp_reduce<Largest>(score), next = above > most ? above : most;
    const M before = std::exp(most - next), p = std::exp(score - next);
    w.weight[0][lane_id()] = p;
    most = next;
    sum = sum * before + warp_reduce<Sum>(p);
    __syncwarp();
    for (M& x : out) x *= before;
    add_rows(out, w.weight[0], v + base * z.kv_row, z.kv_row, partners(base, keys.end), z.dim);
    __syncwarp();
  }
  put_slices(out, M(1) / sum, head_of(static_cast<T*>(a.out), z, z.out_row(), sequence, head) + query * z.out_row(),
             z.dim, false);
  if (a.lse != nullptr && lane_id() == 0)
    static_cast<M*>(a.lse)[row_index(z, sequence, head, query)] = most + std::log(sum);
}

// rowsum(do o) of each query: what the backward kernels, these and those on tensor cores, take from the gradients of
// probabilities.
template <class T>
__global__ void __launch_bounds__(kSimpleThreads) attention_row_sums(AttentionBackward a) {
  const AttentionSizes& z = a.sizes;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z), query = simple_row();
  if (query >= z.length) return;
  const T* out = head_of(static_cast<const T*>(a.out), z, z.out_row(), sequence, head) + query * z.out_row();
  const T* grad = head_of(static_cast<const T*>(a.grad_out), z, z.out_row(), sequence, head) + query * z.out_row();
  Math<T> sum = 0;
  for (int i = lane_id(); i < z.dim; i += 32) sum += load(out[i]) * load(grad[i]);
  sum = warp_reduce<Sum>(sum);
  if (lane_id() == 0) static_cast<Math<T>*>(a.sums)[row_index(z, sequence, head, query)] = sum;
}

template <class T>
__global__ void __launch_bounds__(kSimpleThreads) attention_query_gradient_simple(AttentionBackward a) {
  using M = Math<T>;
  __shared__ WarpSpace<M> space[kSimpleWarps];
  WarpSpace<M>& w = space[threadIdx.x / 32];
  const AttentionSizes& z = a.sizes;
  const int head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z), query = simple_row();
  if (query >= z.length) return;
  const T* k = head_of(static_cast<const T*>(a.k), z, z.kv_row, sequence, head / (z.heads / z.kv_heads));
  const T* v = head_of(static_cast<const T*>(a.v), z, z.kv_row, sequence, head / (z.heads / z.kv_heads));
  const Mask<M> mask = mask_of(z, head, M(1));
  const M scale = M(1) / std::sqrt(M(z.dim));
  const M lse = static_cast<const M*>(a.lse)[row_index(z, sequence, head, query)];
  const M sum = static_cast<const M*>(a.sums)[row_index(z, sequence, head, query)];
  keep_row(w.row[0], head_of(static_cast<const T*>(a.q), z, z.q_row, sequence, head) + query * z.q_row, z.dim);
  keep_row(w.row[1], head_of(static_cast<const T*>(a.grad_out), z, z.out_row(), sequence, head) + query * z.out_row(),
           z.dim);
  __syncwarp();

  const Range keys = keys_seen(z, query, 1);
  M dq[kSlices] = {};
  for (int base = keys.begin; base < keys.end; base += 32) {
    const int key = base + lane_id();
    if (key < keys.end) {
      const M score = mask.lowered(dot(w.row[0], k + key * z.kv_row, z.dim) * scale, query, key);
      w.weight[0][lane_id()] = std::exp(score - lse) * (dot(w.row[1], v + key * z.kv_row, z.dim) - sum);
    }
    __syncwarp();
    add_rows(dq, w.weight[0], k + base * z.kv_row, z.kv_row, partners(base, keys.end), z.dim);
    __syncwarp();
  }
  put_slices(dq, scale, head_of(static_cast<T*>(a.grad_q), z, z.q_row, sequence, head) + query * z.q_row, z.dim,
             a.add_q);
}

template <class T>
__global__ void __launch_bounds__(kSimpleThreads) attention_key_gradient_simple(AttentionBackward a) {
  using M = Math<T>;
  __shared__ WarpSpace<M> space[kSimpleWarps];
  WarpSpace<M>& w = space[threadIdx.x / 32];
  const AttentionSizes& z = a.sizes;
  const int kv_head = static_cast<int>(blockIdx.y), sequence = static_cast<int>(blockIdx.z), key = simple_row();
  if (key >= z.length) return;
  const int shared_by = z.heads / z.kv_heads;
  const M scale = M(1) / std::sqrt(M(z.dim));
  keep_row(w.row[0], head_of(static_cast<const T*>(a.k), z, z.kv_row, sequence, kv_head) + key * z.kv_row, z.dim);
  keep_row(w.row[1], head_of(static_cast<const T*>(a.v), z, z.kv_row, sequence, kv_head) + key * z.kv_row, z.dim);
  __syncwarp();

  const Range queries = queries_seeing(z, key, 1);
  M dk[kSlices] = {}, dv[kSlices] = {};
  for (int head = kv_head * shared_by; head < (kv_head + 1) * shared_by; ++head) {
    const T* q = head_of(static_cast<const T*>(a.q), z, z.q_row, sequence, head);
    const T* grad = head_of(static_cast<const T*>(a.grad_out), z, z.out_row(), sequence, head);
    const Mask<M> mask = mask_of(z, head, M(1));
    for (int base = queries.begin; base < queries.end; base += 32) {
      const int query = base + lane_id();
      if (query < queries.end) {
        const std::int64_t at = row_index(z, sequence, head, query);
        const M score = mask.lowered(dot(w.row[0], q + query * z.q_row, z.dim) * scale, query, key);
        const M p = std::exp(score - static_cast<const M*>(a.lse)[at]);
        w.weight[0][lane_id()] = p;
        w.weight[1][lane_id()] =
            p * (dot(w.row[1], grad + query * z.out_row(), z.dim) - static_cast<const M*>(a.sums)[at]);
      }
      __syncwarp();
      const int count = partners(base, queries.end);
      add_rows(dv, w.weight[0], grad + base * z.out_row(), z.out_row(), count, z.dim);
      add_rows(dk, w.weight[1], q + base * z.q_row, z.q_row, count, z.dim);
      __syncwarp();
    }
  }
  T* const to_k = head_of(static_cast<T*>(a.grad_k), z, z.kv_row, sequence, kv_head);
  T* const to_v = head_of(static_cast<T*>(a.grad_v), z, z.kv_row, sequence, kv_head);
  if (to_k != nullptr) put_slices(dk, scale, to_k + key * z.kv_row, z.dim, a.add_k);
  if (to_v != nullptr) put_slices(dv, M(1), to_v + key * z.kv_row, z.dim, a.add_v);
}

}  // namespace fsdp::cuda
