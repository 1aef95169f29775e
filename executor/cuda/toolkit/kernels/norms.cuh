// RMSNorm and LayerNorm; a block has a row. Formulas and what is kept: executor/kernels/ops/norms.cpp.
#pragma once

#include "executor/cuda/toolkit/kernels/column_sum.cuh"
#include "executor/cuda/toolkit/kernels/reduce.cuh"
#include "executor/kernels/extents.h"

namespace fsdp::cuda {

// `kCentred`: LayerNorm. `bias`, `means` and `rs` may be null.
template <class T, int kCount, bool kCentred>
__global__ void norm_forward_kernel(const T* x, const T* weight, const T* bias, T* y, Math<T>* means, Math<T>* rs,
                                    std::int64_t width, Math<T> eps) {
  using M = Math<T>;
  const std::int64_t row = blockIdx.x;
  x += row * width, y += row * width;
  M centre = 0;
  if constexpr (kCentred) {
    M sum = 0;
    for_row<kCount>(width, [&](std::int64_t i) {
      const Pack<T, kCount> p = load_pack<kCount>(x + i);
      for (int k = 0; k < kCount; ++k) sum += load(p.at[k]);
    });
    centre = block_sum(sum) / static_cast<M>(width);
  }
  M squares = 0;
  for_row<kCount>(width, [&](std::int64_t i) {
    const Pack<T, kCount> p = load_pack<kCount>(x + i);
    for (int k = 0; k < kCount; ++k) squares += (load(p.at[k]) - centre) * (load(p.at[k]) - centre);
  });
  const M r = M(1) / std::sqrt(block_sum(squares) / static_cast<M>(width) + eps);
  for_row<kCount>(width, [&](std::int64_t i) {
    const Pack<T, kCount> p = load_pack<kCount>(x + i), w = load_pack<kCount>(weight + i);
    const Pack<T, kCount> b = bias != nullptr ? load_pack<kCount>(bias + i) : Pack<T, kCount>{};
    Pack<T, kCount> to;
    for (int k = 0; k < kCount; ++k) {
      const M n = (load(p.at[k]) - centre) * r;
      store(to.at[k], n * load(w.at[k]) + (bias != nullptr ? load(b.at[k]) : M(0)));
    }
    store_pack(y + i, to);
  });
  if (threadIdx.x != 0) return;
  if (means != nullptr) means[row] = centre;
  if (rs != nullptr) rs[row] = r;
}

// dx of each row. `means`: null for RMSNorm.
template <class T, int kCount>
__global__ void norm_backward_kernel(const T* x, const T* weight, const T* dy, const Math<T>* means, const Math<T>* rs,
                                     T* dx, bool accumulate, std::int64_t width) {
  using M = Math<T>;
  const std::int64_t row = blockIdx.x;
  x += row * width, dy += row * width, dx += row * width;
  const M r = rs[row], centre = means != nullptr ? means[row] : M(0);
  M g_sum = 0, gn_sum = 0;
  for_row<kCount>(width, [&](std::int64_t i) {
    const Pack<T, kCount> p = load_pack<kCount>(x + i), w = load_pack<kCount>(weight + i),
                          d = load_pack<kCount>(dy + i);
    for (int k = 0; k < kCount; ++k) {
      const M g = load(d.at[k]) * load(w.at[k]);
      g_sum += g;
      gn_sum += g * (load(p.at[k]) - centre) * r;
    }
  });
  const M g_mean = means != nullptr ? block_sum(g_sum) / static_cast<M>(width) : M(0);
  const M gn_mean = block_sum(gn_sum) / static_cast<M>(width);
  for_row<kCount>(width, [&](std::int64_t i) {
    const Pack<T, kCount> p = load_pack<kCount>(x + i), w = load_pack<kCount>(weight + i),
                          d = load_pack<kCount>(dy + i);
    Pack<T, kCount> to = accumulate ? load_pack<kCount>(dx + i) : Pack<T, kCount>{};
    for (int k = 0; k < kCount; ++k) {
      const M n = (load(p.at[k]) - centre) * r;
      put(to.at[k], r * (load(d.at[k]) * load(w.at[k]) - g_mean - n * gn_mean), accumulate);
    }
    store_pack(dx + i, to);
  });
}

// dy n: what a norm's weight gradient sums.
template <class T>
struct NormWeightTerm {
  const T *dy, *x;
  const Math<T>*means, *rs;
  std::int64_t width;
  [[nodiscard]] bool aligned() const { return aligned_to_16(dy, x); }
  template <int kCount>
  __device__ Pack<Math<T>, kCount> at(std::int64_t row, std::int64_t column) const {
    const Pack<T, kCount> d = load_pack<kCount>(dy + row * width + column),
                          p = load_pack<kCount>(x + row * width + column);
    const Math<T> centre = means != nullptr ? means[row] : Math<T>(0), r = rs[row];
    Pack<Math<T>, kCount> terms;
    for (int k = 0; k < kCount; ++k) terms.at[k] = load(d.at[k]) * (load(p.at[k]) - centre) * r;
    return terms;
  }
};

template <class T, bool kCentred, class Launch>
void launch_norm_forward(const Call& call, const Launch& launch) {
  using M = Math<T>;
  const NormRows e(call);
  const T* x = call.input<T>(0, e.elements);
  const T* weight = call.param<T>(0, e.width);
  const T* bias = kCentred && call.params() > 1 ? call.param<T>(1, e.width) : nullptr;
  T* y = call.output<T>(0, e.elements);
  M* kept = call.extra_to_keep<M>(extent(kCentred ? 2 : 1, e.rows));
  M *means = kCentred ? kept : nullptr, *rs = kept == nullptr ? nullptr : kCentred ? kept + e.rows : kept;
  if (e.elements == 0) return;
  with_packs<kPack<T>>(e.width % kPack<T> == 0 && aligned_to_16(x, weight, bias, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(e.rows)}, {threads_for_row(e.width)}, 0, norm_forward_kernel<T, c, kCentred>, x,
           weight, bias, y, means, rs, e.width, static_cast<M>(call.shape.eps));
  });
}

template <class T, bool kCentred, class Launch>
void launch_norm_backward(const Call& call, const Launch& launch) {
  using M = Math<T>;
  const NormRows e(call);
  const T* dy = call.grad_output<T>(0, e.elements);
  const T* x = call.input<T>(0, e.elements);
  const T* weight = call.param<T>(0, e.width);
  const M* kept = call.extra<M>(extent(kCentred ? 2 : 1, e.rows));
  const M *means = kCentred ? kept : nullptr, *rs = kCentred ? kept + e.rows : kept;
  M* parts = call.scratch<M>(extent(column_sum_parts(e.rows), e.width));
  if (e.elements == 0) return;
  if (T* dx = call.grad_input<T>(0, e.elements))
    with_packs<kPack<T>>(e.width % kPack<T> == 0 && aligned_to_16(x, weight, dy, dx), [&](auto count) {
      constexpr int c = decltype(count)::value;
      launch({static_cast<unsigned>(e.rows)}, {threads_for_row(e.width)}, 0, norm_backward_kernel<T, c>, x, weight, dy,
             means, rs, dx, call.adds_to_input(0), e.width);
    });
  if (T* dw = call.grad_param<T>(0, e.width))
    launch_column_sum<T>(e.rows, e.width, column_sum_parts(e.rows), parts, dw, call.adds_to_param(0),
                         NormWeightTerm<T>{dy, x, means, rs, e.width}, launch);
  if (!kCentred || call.params() < 2) return;
  if (T* db = call.grad_param<T>(1, e.width))
    launch_column_sum<T>(e.rows, e.width, column_sum_parts(e.rows), parts, db, call.adds_to_param(1),
                         ValueTerm<T>{dy, e.width}, launch);
}

template <class Launch>
void launch_norms(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    if (call.op.kind == OpKind::layer_norm)
      return backward ? launch_norm_backward<T, true>(call, launch) : launch_norm_forward<T, true>(call, launch);
    return backward ? launch_norm_backward<T, false>(call, launch) : launch_norm_forward<T, false>(call, launch);
  });
}

}  // namespace fsdp::cuda
