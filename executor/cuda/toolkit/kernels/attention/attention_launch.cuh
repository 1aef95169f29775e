// Which attention kernel runs for which sizes, with which grid. `launch(kernel, grid, block, shared bytes, argument)`
// starts it: by the CUDA runtime in attention.cu, by the emulator in tests.
#pragma once

#include <cstdint>
#include <string>

#include "executor/cuda/toolkit/kernels/attention/attention_backward.cuh"
#include "executor/cuda/toolkit/kernels/attention/attention_forward.cuh"
#include "executor/cuda/toolkit/kernels/attention/attention_simple.cuh"
#include "models/input/error.h"

namespace fsdp::cuda {

inline bool aligned_to_16(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  return true;
}

inline void check_attention(const AttentionSizes& z) {
  const auto fail = [](const std::string& problem) { throw MachineError("attention on the GPU: " + problem); };
  if (z.sequences <= 0 || z.length <= 0 || z.heads <= 0 || z.kv_heads <= 0 || z.dim <= 0)
    fail("sizes that are not positive");
  if (z.heads % z.kv_heads != 0) fail("the query heads are no multiple of the key heads");
  if (!z.causal && z.window > 0) fail("a window without a causal mask is not defined");
  if (z.dim > kMostAttentionDim)
    fail("head_dim " + std::to_string(z.dim) + " is above " + std::to_string(kMostAttentionDim));
  if (z.sequences > 65535 || z.heads > 65535) fail("more than 65535 sequences or heads");
  if (z.length > (1 << 24))
    fail("sequences of more than 2^24 tokens");  // indices of tokens and tiles stay within 32 bits
}

// A window that no sequence reaches is none: then no index of a token plus a window exceeds 32 bits.
inline AttentionSizes effective(AttentionSizes z) {
  if (z.window >= z.length) z.window = 0;
  return z;
}

// Rows of a head must be copied 16 bytes at a time.
inline bool fits_tiles(const AttentionSizes& z) {
  return (z.dim == 64 || z.dim == 128) && z.q_row % 8 == 0 && z.kv_row % 8 == 0;
}

inline dim3 attention_grid(const AttentionSizes& z, int rows_of_block, int heads) {
  return {static_cast<unsigned>((z.length + rows_of_block - 1) / rows_of_block), static_cast<unsigned>(heads),
          static_cast<unsigned>(z.sequences)};
}

template <class T, int DIM, class Launch>
void forward_on_tiles(const AttentionForward& a, const Launch& launch) {
  using Tiles = ForwardTiles<DIM>;
  const dim3 grid = attention_grid(a.sizes, Tiles::kQueries, a.sizes.heads);
  launch(attention_forward_tiles<T, DIM>, grid, kAttentionThreads, Tiles::kBytes, a);
}
template <class T, int DIM, class Launch>
void backward_on_tiles(const AttentionBackward& a, const Launch& launch) {
  using Tiles = BackwardTiles<DIM>;
  const AttentionSizes& z = a.sizes;
  if (a.grad_q != nullptr)
    launch(attention_query_gradient<T, DIM>, attention_grid(z, Tiles::kKept, z.heads), kAttentionThreads, Tiles::kBytes,
           a);
  if (a.grad_k != nullptr || a.grad_v != nullptr)
    launch(attention_key_gradient<T, DIM>, attention_grid(z, Tiles::kKept, z.kv_heads), kAttentionThreads,
           Tiles::kBytes, a);
}

template <class T, class Launch>
void forward_of_type(const AttentionForward& a, const Launch& launch) {
  if constexpr (sizeof(T) == 2) {
    const bool tiles = fits_tiles(a.sizes) && aligned_to_16({a.q, a.k, a.v, a.out});
    if (tiles && a.sizes.dim == 64) return forward_on_tiles<T, 64>(a, launch);
    if (tiles) return forward_on_tiles<T, 128>(a, launch);
  }
  launch(attention_forward_simple<T>, attention_grid(a.sizes, kSimpleWarps, a.sizes.heads), kSimpleThreads, 0, a);
}

template <class T, class Launch>
void backward_of_type(const AttentionBackward& a, const Launch& launch) {
  const AttentionSizes& z = a.sizes;
  launch(attention_row_sums<T>, attention_grid(z, kSimpleWarps, z.heads), kSimpleThreads, 0, a);
  if constexpr (sizeof(T) == 2) {
    const bool tiles = fits_tiles(z) && aligned_to_16({a.q, a.k, a.v, a.grad_out, a.grad_q, a.grad_k, a.grad_v});
    if (tiles && z.dim == 64) return backward_on_tiles<T, 64>(a, launch);
    if (tiles) return backward_on_tiles<T, 128>(a, launch);
  }
  if (a.grad_q != nullptr)
    launch(attention_query_gradient_simple<T>, attention_grid(z, kSimpleWarps, z.heads), kSimpleThreads, 0, a);
  if (a.grad_k != nullptr || a.grad_v != nullptr)
    launch(attention_key_gradient_simple<T>, attention_grid(z, kSimpleWarps, z.kv_heads), kSimpleThreads, 0, a);
}

template <class Launch>
void forward_attention(DType type, AttentionForward a, const Launch& launch) {
  check_attention(a.sizes);
  a.sizes = effective(a.sizes);
  with_type(type, [&](auto element) { forward_of_type<decltype(element)>(a, launch); });
}
template <class Launch>
void backward_attention(DType type, AttentionBackward a, const Launch& launch) {
  check_attention(a.sizes);
  a.sizes = effective(a.sizes);
  with_type(type, [&](auto element) { backward_of_type<decltype(element)>(a, launch); });
}

}  // namespace fsdp::cuda
