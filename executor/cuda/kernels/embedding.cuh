// Token and position embeddings. The gradient of a row of the table is the sum over the tokens that looked it up, in token order: tokens of
// one id are chained in scratch ([tokens] of int64) from the first to the last, and a block walks each chain. No atomics, the same bits
// every time.
#pragma once

#include "executor/cuda/kernels/launch.cuh"
#include "executor/kernels/call.h"

namespace fsdp::cuda {

template <class T, int kCount>
__global__ void embedding_forward_kernel(const std::int64_t* ids, const T* weight, T* y, std::int64_t width, std::int64_t vocab) {
  const std::int64_t token = blockIdx.x, id = ids[token];
  if (id < 0 || id >= vocab) device_fail("a token is outside of the vocabulary");
  for_row<kCount>(width, [&](std::int64_t i) { store_pack(y + token * width + i, load_pack<kCount>(weight + id * width + i)); });
}

// chain[t] = 2 (the next token of the same id + 1, or 0) + (1 if t is the first of its id). A warp has a token; 4 warps to a block.
__global__ inline void chain_kernel(const std::int64_t* ids, std::int64_t* chain, std::int64_t tokens, std::int64_t vocab) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.x / 32;
  const unsigned lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const std::int64_t id = ids[token];
  if (id < 0 || id >= vocab) device_fail("a token is outside of the vocabulary");
  std::int64_t next = -1;
  for (std::int64_t begin = token + 1; begin < tokens && next < 0; begin += 32) {
    const std::int64_t t = begin + lane;
    const unsigned found = __ballot_sync(0xffffffffu, t < tokens && ids[t] == id);
    if (found != 0) next = begin + __ffs(static_cast<int>(found)) - 1;
  }
  bool first = true;
  for (std::int64_t end = token; end > 0 && first; end -= 32) {
    const std::int64_t t = end - 1 - lane;
    first = __any_sync(0xffffffffu, t >= 0 && ids[t] == id) == 0;
  }
  if (lane == 0) chain[token] = 2 * (next + 1) + (first ? 1 : 0);
}

// A block per token (x) and part of the width (y); those of tokens that are not the first of their id have nothing to do.
template <class T>
__global__ void embedding_backward_kernel(const std::int64_t* ids, const std::int64_t* chain, const T* dy, T* dw, std::int64_t width,
                                          bool accumulate) {
  const std::int64_t token = blockIdx.x, i = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (chain[token] % 2 == 0 || i >= width) return;
  Math<T> sum = 0;
  for (std::int64_t t = token; t >= 0; t = chain[t] / 2 - 1) sum += load(dy[t * width + i]);
  put(dw[ids[token] * width + i], sum, accumulate);
}

template <class T, class Launch>
void launch_embedding_forward(const Call& call, const Launch& launch) {
  const std::int64_t width = call.shape.width, vocab = call.shape.vocab;
  const auto* ids = call.input<std::int64_t>(0, call.tokens);
  const T* weight = call.param<T>(0, extent(vocab, width));
  T* y = call.output<T>(0, extent(call.tokens, width));
  if (call.tokens == 0 || width == 0) return;
  with_packs<kPack<T>>(width % kPack<T> == 0 && aligned_to_16(weight, y), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(call.tokens)}, {threads_for_row(width, 256)}, 0, embedding_forward_kernel<T, c>, ids, weight, y, width, vocab);
  });
}

template <class T, class Launch>
void launch_embedding_backward(const Call& call, const Launch& launch) {
  const std::int64_t width = call.shape.width, vocab = call.shape.vocab;
  const auto* ids = call.input<std::int64_t>(0, call.tokens);
  const T* dy = call.grad_output<T>(0, extent(call.tokens, width));
  auto* chain = call.scratch<std::int64_t>(call.tokens);
  T* dw = call.grad_param<T>(0, extent(vocab, width));
  if (dw == nullptr) return;
  const bool accumulate = call.adds_to_param(0);
  if (!accumulate) launch.zero(dw, vocab * width * static_cast<std::int64_t>(sizeof(T)));
  if (call.tokens == 0 || width == 0) return;
  launch({static_cast<unsigned>((call.tokens + 3) / 4)}, {128}, 0, chain_kernel, ids, chain, call.tokens, vocab);
  launch({static_cast<unsigned>(call.tokens), static_cast<unsigned>((width + 127) / 128)}, {128}, 0, embedding_backward_kernel<T>, ids,
         static_cast<const std::int64_t*>(chain), dy, dw, width, accumulate);
}

// The same rows of the table for each sequence (grid y).
template <class T, int kCount>
__global__ void position_embedding_forward_kernel(const T* x, const T* weight, T* y, std::int64_t sequences, std::int64_t elements) {
  for (std::int64_t s = blockIdx.y; s < sequences; s += gridDim.y)
    for_elements<kCount>(elements, [=](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const Pack<T, c> px = load_pack<c>(x + s * elements + i), pw = load_pack<c>(weight + i);
      Pack<T, c> py;
      for (int k = 0; k < c; ++k) store(py.at[k], load(px.at[k]) + load(pw.at[k]));
      store_pack(y + s * elements + i, py);
    });
}

template <class T>
__global__ void position_embedding_backward_kernel(const T* dy, T* dw, std::int64_t sequences, std::int64_t elements, bool accumulate) {
  for_elements<1>(elements, [=](auto, std::int64_t i) {
    Math<T> sum = 0;
    for (std::int64_t s = 0; s < sequences; ++s) sum += load(dy[s * elements + i]);
    put(dw[i], sum, accumulate);
  });
}

inline void check_positions(const Call& call) {
  if (call.work.seq_len > call.shape.positions)
    call.fail("a sequence of " + std::to_string(call.work.seq_len) + " tokens is longer than its " + std::to_string(call.shape.positions) +
              " positions");
}

template <class T, class Launch>
void launch_position_embedding_forward(const Call& call, const Launch& launch) {
  check_positions(call);
  const std::int64_t width = call.shape.width, elements = call.work.seq_len * width;
  const T* x = call.input<T>(0, extent(call.tokens, width));
  const T* weight = call.param<T>(0, extent(call.shape.positions, width));
  T* y = call.output<T>(0, extent(call.tokens, width));
  if (call.tokens == 0 || width == 0) return;
  const bool packs = (call.work.sequences == 1 || elements % kPack<T> == 0) && aligned_to_16(x, weight, y);
  with_packs<kPack<T>>(packs, [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({blocks_for(elements / c + 1), rows_of_grid(call.work.sequences)}, {kThreads}, 0, position_embedding_forward_kernel<T, c>, x, weight, y,
           call.work.sequences, elements);
  });
}

template <class T, class Launch>
void launch_position_embedding_backward(const Call& call, const Launch& launch) {
  check_positions(call);
  const std::int64_t width = call.shape.width, elements = call.work.seq_len * width, all = extent(call.shape.positions, width);
  const T* dy = call.grad_output<T>(0, extent(call.tokens, width));
  T* dw = call.grad_param<T>(0, all);
  if (dw == nullptr) return;
  const bool accumulate = call.adds_to_param(0);
  if (elements > 0)
    launch({blocks_for(elements)}, {kThreads}, 0, position_embedding_backward_kernel<T>, dy, dw, call.work.sequences, elements, accumulate);
  if (!accumulate) launch.zero(dw + elements, (all - elements) * static_cast<std::int64_t>(sizeof(T)));
}

template <class Launch>
void launch_embeddings(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    if (call.op.kind == OpKind::embedding) return backward ? launch_embedding_backward<T>(call, launch) : launch_embedding_forward<T>(call, launch);
    return backward ? launch_position_embedding_backward<T>(call, launch) : launch_position_embedding_forward<T>(call, launch);
  });
}

}  // namespace fsdp::cuda
