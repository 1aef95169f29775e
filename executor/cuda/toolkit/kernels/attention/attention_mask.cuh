// What attention's queries see, and where heads lie.
#pragma once

#include <cmath>
#include <cstdint>

#include "executor/cuda/toolkit/kernels/attention/attention.h"

namespace fsdp::cuda {

inline constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// What a query sees, and by how much alibi lowers its scores.
template <class M>
struct Mask {
  int length, window;
  bool causal;
  M slope;  // in the units of the scores
  __device__ bool sees(int query, int key) const {
    return query < length && key < length && !(causal && key > query) && !(window > 0 && query - key >= window);
  }
  // All of [query, query + queries) x [key, key + keys) is seen, and nothing is subtracted.
  __device__ bool plain(int query, int queries, int key, int keys) const {
    return slope == M(0) && query + queries <= length && key + keys <= length && !(causal && key + keys - 1 > query) &&
           !(window > 0 && query + queries - 1 - key >= window);
  }
  // None of it is.
  __device__ bool empty(int query, int queries, int key, int keys) const {
    return query >= length || key >= length || (causal && key > query + queries - 1) ||
           (window > 0 && query - (key + keys - 1) >= window);
  }
  __device__ M lowered(M score, int query, int key) const {
    return score - slope * static_cast<M>(query > key ? query - key : key - query);
  }
};

// Slope of a head (executor/kernels/ops/attention.cpp says whose).
__device__ inline double alibi_slope(int heads, int head) {
  int n = 1;
  while (n < heads) n *= 2;
  const int even = n / 2, i = n == heads ? head + 1 : head < even ? 2 * head + 2 : 2 * (head - even) + 1;
  return std::exp2(-8.0 * i / n);
}

// `unit`: 1 for natural scores, log2 e for scores in units of log 2.
template <class M>
__device__ Mask<M> mask_of(const AttentionSizes& z, int head, M unit) {
  return {z.length, z.window, z.causal, z.alibi ? static_cast<M>(alibi_slope(z.heads, head)) * unit : M(0)};
}

// Keys that queries [query, query + queries) see are in [begin, end); queries that see keys [key, key + keys) likewise.
struct Range {
  int begin, end;
};
__device__ inline Range keys_seen(const AttentionSizes& z, int query, int queries) {
  const int last = query + queries < z.length ? query + queries : z.length, first = query - z.window + 1;
  return {z.window > 0 && first > 0 ? first : 0, z.causal ? last : z.length};
}
__device__ inline Range queries_seeing(const AttentionSizes& z, int key, int keys) {
  const int last = key + keys - 1 + z.window;
  return {z.causal ? key : 0, z.window > 0 && last < z.length ? last : z.length};
}

// A block's head within q, k, v and their like.
template <class T>
__device__ T* head_of(T* x, const AttentionSizes& z, std::int64_t row, int sequence, int head) {
  return x == nullptr ? nullptr : x + std::int64_t{sequence} * z.length * row + std::int64_t{head} * z.dim;
}

}  // namespace fsdp::cuda
