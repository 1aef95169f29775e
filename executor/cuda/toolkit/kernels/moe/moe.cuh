// Mixtures of experts: routing, dispatching, combining. Formulas: executor/kernels/ops/moe.cpp; slots are given in the
// order of tokens, then of their choices, as there.
#pragma once

#include <cmath>
#include <limits>

#include "executor/arithmetic/exp.h"
#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/cuda/toolkit/kernels/reduce.cuh"
#include "executor/kernels/extents.h"

namespace fsdp::cuda {

struct Route {  // extents
  std::int64_t tokens, experts, k, capacity, slots;
  bool renormalised;
};
inline Route route_of(const Call& call) {
  const ExpertSizes z(call);
  return {z.tokens, z.experts, z.k, z.capacity, z.slots, call.shape.renormalised};
}

// What comes from another op is checked where it is used as an address.
__device__ inline std::int64_t checked_slot(std::int64_t id, std::int64_t slots, std::int64_t experts) {
  if (id >= slots || id < -experts) device_fail("a slot of an expert that there is not");
  return id;
}

// NaN counts as largest, so that there always is a next one.
template <class M>
__device__ M rank_of(M x) {
  return x != x ? std::numeric_limits<M>::infinity() : x;
}

// By a warp: the expert of the largest logit after `before` in the order of falling logits, equal ones by expert; -1:
// none.
template <class T>
__device__ std::int64_t next_expert(const T* logits, std::int64_t experts, std::int64_t before) {
  using M = Math<T>;
  const M last = before >= 0 ? rank_of(load(logits[before])) : M(0);
  std::int64_t best = -1;
  M most = 0;
  for (std::int64_t e = threadIdx.x % 32; e < experts; e += 32) {
    const M x = rank_of(load(logits[e]));
    if (before >= 0 && (x > last || (x == last && e <= before))) continue;
    if (best < 0 || x > most) best = e, most = x;
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    const std::int64_t other = __shfl_xor_sync(0xffffffffu, best, distance);
    const M x = __shfl_xor_sync(0xffffffffu, most, distance);
    if (other >= 0 && (best < 0 || x > most || (x == most && other < best))) best = other, most = x;
  }
  return best;
}

template <class T>
__device__ Math<T> largest_of_row(const T* x, std::int64_t n) {
  using M = Math<T>;
  M most = -std::numeric_limits<M>::infinity();
  for (std::int64_t i = threadIdx.x % 32; i < n; i += 32) most = load(x[i]) > most ? load(x[i]) : most;
  return warp_reduce<Largest>(most);
}

template <class T>
__device__ Math<T> exponentials_of_row(const T* x, std::int64_t n, Math<T> most) {
  Math<T> sum = 0;
  for (std::int64_t i = threadIdx.x % 32; i < n; i += 32) sum += exp_of(load(x[i]) - most);
  return warp_reduce<Sum>(sum);
}

// A warp has a token. Writes weights, and in place of slots the experts, as if all were dropped.
template <class T>
__global__ void choose_kernel(const T* logits, T* weights, std::int64_t* slots, Route z) {
  using M = Math<T>;
  const std::int64_t token = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (token >= z.tokens) return;
  const T* l = logits + token * z.experts;
  const M most = largest_of_row(l, z.experts);
  M sum = z.renormalised ? M(0) : exponentials_of_row(l, z.experts, most);
  std::int64_t e = -1;
  for (std::int64_t j = 0; j < z.k; ++j) {
    e = next_expert(l, z.experts, e);
    if (z.renormalised) sum += exp_of(load(l[e]) - most);
    if (threadIdx.x % 32 == 0) slots[token * z.k + j] = dropped(e);
  }
  __syncwarp();
  for (std::int64_t j = threadIdx.x % 32; j < z.k; j += 32)
    store(weights[token * z.k + j], exp_of(load(l[-1 - slots[token * z.k + j]]) - most) / sum);
}

// A block has an expert and gives its slots away in the order of the choices. Others only see what is not theirs.
__global__ inline void give_slots_kernel(std::int64_t* slots, std::int64_t choices, std::int64_t capacity) {
  __shared__ std::int64_t of_warp[32];
  const std::int64_t expert = blockIdx.x, mine = dropped(expert);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  std::int64_t taken = 0;
  for (std::int64_t begin = 0; begin < choices; begin += blockDim.x) {
    const std::int64_t c = begin + threadIdx.x;
    const bool chosen = c < choices && slots[c] == mine;
    const unsigned ballot = __ballot_sync(0xffffffffu, chosen);
    if (lane == 0) of_warp[warp] = __popc(ballot);
    __syncthreads();
    std::int64_t before = taken + __popc(ballot & ((1u << lane) - 1u));
    for (unsigned w = 0; w < warps; ++w) {
      if (w < warp) before += of_warp[w];
      taken += of_warp[w];
    }
    if (chosen && before < capacity) slots[c] = expert * capacity + before;
    __syncthreads();
  }
}

// A warp has a token.
template <class T>
__global__ void route_backward_kernel(const T* logits, const T* weights, const std::int64_t* slots, const T* dw, T* dl,
                                      Route z, bool accumulate) {
  using M = Math<T>;
  const std::int64_t token = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  if (token >= z.tokens) return;
  const std::int64_t c = token * z.k;
  const T* l = z.renormalised ? nullptr : logits + token * z.experts;
  const M most = z.renormalised ? M(0) : largest_of_row(l, z.experts);
  const M sum = z.renormalised ? M(1) : exponentials_of_row(l, z.experts, most);
  const auto expert = [&](std::int64_t j) {
    return expert_of(checked_slot(slots[c + j], z.slots, z.experts), z.capacity);
  };
  const auto weight = [&](std::int64_t j) -> M {
    return z.renormalised ? load(weights[c + j]) : exp_of(load(l[expert(j)]) - most) / sum;
  };
  M mean = 0;  // of the gradients, by weight
  for (std::int64_t j = 0; j < z.k; ++j) mean += weight(j) * load(dw[c + j]);
  for (std::int64_t e = threadIdx.x % 32; e < z.experts; e += 32) {
    M g = z.renormalised ? M(0) : -exp_of(load(l[e]) - most) / sum * mean;
    for (std::int64_t j = 0; j < z.k; ++j)
      if (expert(j) == e) g += weight(j) * (load(dw[c + j]) - (z.renormalised ? mean : M(0)));
    put(dl[token * z.experts + e], g, accumulate);
  }
}

// A block has a choice: its token's row into its slot. Slots that nobody chose have been zeroed.
template <class T, int kCount>
__global__ void dispatch_forward_kernel(const T* x, const std::int64_t* slots, T* y, std::int64_t width, Route z) {
  const std::int64_t c = blockIdx.x, slot = checked_slot(slots[c], z.slots, z.experts);
  if (!is_slot(slot)) return;
  for_row<kCount>(
      width, [&](std::int64_t i) { store_pack(y + slot * width + i, load_pack<kCount>(x + c / z.k * width + i)); });
}

// A block has a token. y[t] (+)= sum over its slots of (weight) rows[slot], in the order of its choices. `weights`
// null: 1 each.
template <class T, int kCount>
__global__ void gather_rows_kernel(const T* rows, const T* weights, const std::int64_t* slots, T* y, std::int64_t width,
                                   Route z, bool accumulate) {
  using M = Math<T>;
  const std::int64_t token = blockIdx.x;
  for_row<kCount>(width, [&](std::int64_t i) {
    M sum[kCount] = {};
    for (std::int64_t c = token * z.k; c < (token + 1) * z.k; ++c) {
      const std::int64_t slot = checked_slot(slots[c], z.slots, z.experts);
      if (!is_slot(slot)) continue;
      const Pack<T, kCount> p = load_pack<kCount>(rows + slot * width + i);
      const M w = weights != nullptr ? load(weights[c]) : M(1);
      for (int k = 0; k < kCount; ++k) sum[k] += w * load(p.at[k]);
    }
    Pack<T, kCount> to = accumulate ? load_pack<kCount>(y + token * width + i) : Pack<T, kCount>{};
    for (int k = 0; k < kCount; ++k) put(to.at[k], sum[k], accumulate);
    store_pack(y + token * width + i, to);
  });
}

// A block has a choice: dy[slot] (+)= w do[t] and dw (+)= <do[t], y[slot]>. dy, dw: null where nobody wants them.
template <class T, int kCount>
__global__ void combine_backward_kernel(const T* dout, const T* y, const T* weights, const std::int64_t* slots, T* dy,
                                        bool dy_adds, T* dw, bool dw_adds, std::int64_t width, Route z) {
  using M = Math<T>;
  const std::int64_t c = blockIdx.x, slot = checked_slot(slots[c], z.slots, z.experts);
  const T* d = dout + c / z.k * width;
  if (dy != nullptr && is_slot(slot)) {
    const M w = load(weights[c]);
    for_row<kCount>(width, [&](std::int64_t i) {
      const Pack<T, kCount> p = load_pack<kCount>(d + i);
      Pack<T, kCount> to = dy_adds ? load_pack<kCount>(dy + slot * width + i) : Pack<T, kCount>{};
      for (int k = 0; k < kCount; ++k) put(to.at[k], w * load(p.at[k]), dy_adds);
      store_pack(dy + slot * width + i, to);
    });
  }
  if (dw == nullptr) return;
  M sum = 0;
  if (is_slot(slot))
    for_row<kCount>(width, [&](std::int64_t i) {
      const Pack<T, kCount> p = load_pack<kCount>(d + i), v = load_pack<kCount>(y + slot * width + i);
      for (int k = 0; k < kCount; ++k) sum += load(p.at[k]) * load(v.at[k]);
    });
  sum = block_sum(sum);
  if (threadIdx.x == 0) put(dw[c], sum, dw_adds);
}

}  // namespace fsdp::cuda
