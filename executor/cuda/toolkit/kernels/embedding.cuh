// Token and position embeddings. The gradient of a row of the table is the sum over the tokens that looked it up:
// tokens are sorted by id, and blocks add up equal pieces of the sorted tokens, so that a row of many tokens takes no
// longer than many rows of one. The order of every sum is that of the sorted tokens: no atomics, the same bits every
// time.
#pragma once

#include <limits>
#include <utility>

#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/kernels/call.h"
#include "models/implementations/native_cuda.h"

namespace fsdp::cuda {

// `others`: rows that other ranks have, where this one has a part of the vocabulary and counts from its first row; what
// they look up is zero here.
template <class T, int kCount>
__global__ void embedding_forward_kernel(const std::int64_t* ids, const T* weight, T* y, std::int64_t width,
                                         std::int64_t vocab, std::int64_t others) {
  const std::int64_t token = blockIdx.x, id = ids[token];
  if (id < -others || id >= vocab + others) device_fail("a token is outside of the vocabulary");
  const bool mine = id >= 0 && id < vocab;
  for_row<kCount>(width, [&](std::int64_t i) {
    store_pack(y + token * width + i, mine ? load_pack<kCount>(weight + id * width + i) : Pack<T, kCount>{});
  });
}

// A token's key: its id above its position, so that keys are different and their order is by id, then by position.
FSDP_DEVICE inline std::int64_t key_of_token(std::int64_t id, std::int64_t token) { return (id << 32) | token; }
FSDP_DEVICE inline std::int64_t id_of(std::int64_t key) { return key >> 32; }
FSDP_DEVICE inline std::int64_t token_of(std::int64_t key) { return key & 0xffffffff; }

// Keys in sorted tiles, a block each: a bitonic network in shared memory. Rows of ranks before this one come behind
// those of the ranks after it.
__global__ inline void sort_tokens_kernel(const std::int64_t* ids, std::int64_t* sorted, std::int64_t tokens,
                                          std::int64_t vocab, std::int64_t others) {
  constexpr auto kTile = static_cast<unsigned>(kSortedTile);
  __shared__ std::int64_t keys[kTile];
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSortedTile;
  for (unsigned i = threadIdx.x; i < kTile; i += blockDim.x) {
    const std::int64_t token = begin + i;
    keys[i] = std::numeric_limits<std::int64_t>::max();  // what fills the last tile comes last
    if (token >= tokens) continue;
    const std::int64_t id = ids[token];
    if (id < -others || id >= vocab + others) device_fail("a token is outside of the vocabulary");
    keys[i] = key_of_token(id < 0 ? id + vocab + others : id, token);
  }
  for (unsigned size = 2; size <= kTile; size *= 2)
    for (unsigned distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (unsigned pair = threadIdx.x; pair < kTile / 2; pair += blockDim.x) {
        const unsigned low = pair / distance * 2 * distance + pair % distance, high = low + distance;
        const std::int64_t a = keys[low], b = keys[high];
        if ((a > b) == ((low & size) == 0)) keys[low] = b, keys[high] = a;
      }
    }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < kTile && begin + i < tokens; i += blockDim.x) sorted[begin + i] = keys[i];
}

// Sorted runs of `run` keys, two by two into one. A key's place: how many of the other run are less.
__global__ inline void merge_tokens_kernel(const std::int64_t* from, std::int64_t* to, std::int64_t tokens,
                                           std::int64_t run) {
  for_elements<1>(tokens, [=](auto, std::int64_t i) {
    const std::int64_t begin = i / (2 * run) * 2 * run, middle = begin + run < tokens ? begin + run : tokens;
    const std::int64_t end = middle + run < tokens ? middle + run : tokens, key = from[i];
    const std::int64_t first = i < middle ? middle : begin;  // of the other run
    std::int64_t less = first, beyond = i < middle ? end : middle;
    while (less < beyond) {
      const std::int64_t half = (less + beyond) / 2;
      if (from[half] < key) less = half + 1;
      else beyond = half;
    }
    to[i + less - middle] = key;  // i - its run's begin + less - first + begin, for both
  });
}

// A block per piece of the sorted tokens (x) and part of the width (y). What a piece has of a row that began before it
// goes to sums[2 piece], of one that goes on behind it to the next; of one that does both, to the former.
template <class T, int kCount>
__global__ void embedding_sums_kernel(const std::int64_t* sorted, std::int64_t tokens, const T* dy, T* dw,
                                      Math<T>* sums, std::int64_t width, bool accumulate) {
  using M = Math<T>;
  const std::int64_t piece = blockIdx.x, begin = piece * kSummedTokens,
                     end = begin + kSummedTokens < tokens ? begin + kSummedTokens : tokens;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kCount;
  if (i >= width) return;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t id = id_of(sorted[at]);
    const bool began_before = at == begin && begin > 0 && id_of(sorted[begin - 1]) == id;
    Pack<M, kCount> sum{};
    for (; at < end && id_of(sorted[at]) == id; ++at) {
      const Pack<T, kCount> p = load_pack<kCount>(dy + token_of(sorted[at]) * width + i);
      for (int k = 0; k < kCount; ++k) sum.at[k] += load(p.at[k]);
    }
    const bool goes_on = at == end && end < tokens && id_of(sorted[end]) == id;
    if (began_before || goes_on) {
      for (int k = 0; k < kCount; ++k) sums[(2 * piece + (began_before ? 0 : 1)) * width + i + k] = sum.at[k];
      continue;
    }
    Pack<T, kCount> to = accumulate ? load_pack<kCount>(dw + id * width + i) : Pack<T, kCount>{};
    for (int k = 0; k < kCount; ++k) put(to.at[k], sum.at[k], accumulate);
    store_pack(dw + id * width + i, to);
  }
}

// The row that begins in a piece and goes on behind it, by the block of that piece; the grid as above.
template <class T>
__global__ void embedding_finish_kernel(const std::int64_t* sorted, std::int64_t tokens, const Math<T>* sums, T* dw,
                                        std::int64_t width, bool accumulate) {
  const std::int64_t piece = blockIdx.x, begin = piece * kSummedTokens, end = begin + kSummedTokens;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  if (i >= width || end >= tokens) return;
  const std::int64_t id = id_of(sorted[end - 1]);
  if (id_of(sorted[end]) != id || (begin > 0 && id_of(sorted[begin - 1]) == id)) return;
  Math<T> sum = sums[(2 * piece + 1) * width + i];
  for (std::int64_t next = piece + 1; next * kSummedTokens < tokens && id_of(sorted[next * kSummedTokens]) == id;
       ++next)
    sum += sums[2 * next * width + i];
  put(dw[id * width + i], sum, accumulate);
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
    launch({static_cast<unsigned>(call.tokens)}, {threads_for_row(width, 256)}, 0, embedding_forward_kernel<T, c>, ids,
           weight, y, width, vocab, extent(vocab, call.shape.vocab_parts - 1));
  });
}

// Of a split vocabulary: the gradient of all rows (executor/kernels/ops/embedding.cpp).
// Scratch: the keys twice, then sums.
template <class T, class Launch>
void launch_embedding_backward(const Call& call, const Launch& launch) {
  using M = Math<T>;
  const std::int64_t width = call.shape.width, vocab = call.shape.vocab, tokens = call.tokens,
                     rows = extent(vocab, call.shape.vocab_parts), pieces = embedding_pieces(tokens);
  const auto* ids = call.input<std::int64_t>(0, tokens);
  const T* dy = call.grad_output<T>(0, extent(tokens, width));
  auto* sorted = reinterpret_cast<std::int64_t*>(
      call.scratch<std::byte>(extent(tokens, 16) + extent(2 * pieces, width, static_cast<std::int64_t>(sizeof(M)))));
  auto* other = sorted + tokens;
  M* sums = reinterpret_cast<M*>(sorted + 2 * tokens);
  T* dw = call.grad_param<T>(0, extent(rows, width));
  if (dw == nullptr) return;
  if (tokens >> 32 != 0 || rows >> 31 != 0) call.fail("a token's id needs 31 bits at most, its position 32");
  const bool accumulate = call.adds_to_param(0);
  if (!accumulate) launch.zero(dw, rows * width * static_cast<std::int64_t>(sizeof(T)));
  if (tokens == 0 || width == 0) return;
  launch({static_cast<unsigned>((tokens + kSortedTile - 1) / kSortedTile)}, {kThreads}, 0, sort_tokens_kernel, ids,
         sorted, tokens, vocab, rows - vocab);
  for (std::int64_t run = kSortedTile; run < tokens; run *= 2) {
    launch({blocks_for(tokens)}, {kThreads}, 0, merge_tokens_kernel, static_cast<const std::int64_t*>(sorted), other,
           tokens, run);
    std::swap(sorted, other);
  }
  const std::int64_t* keys = sorted;
  const auto grid = [&](std::int64_t columns) {
    return Extent3{static_cast<unsigned>(pieces), static_cast<unsigned>((columns + 127) / 128)};
  };
  with_packs<kPack<T>>(width % kPack<T> == 0 && aligned_to_16(dy, dw), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch(grid(width / c), {128}, 0, embedding_sums_kernel<T, c>, keys, tokens, dy, dw, sums, width, accumulate);
  });
  launch(grid(width), {128}, 0, embedding_finish_kernel<T>, keys, tokens, static_cast<const M*>(sums), dw, width,
         accumulate);
}

// The same rows of the table for each sequence (grid y).
template <class T, int kCount>
__global__ void position_embedding_forward_kernel(const T* x, const T* weight, T* y, std::int64_t sequences,
                                                  std::int64_t elements) {
  for (std::int64_t s = blockIdx.y; s < sequences; s += gridDim.y)
    for_elements<kCount>(elements, [=](auto count, std::int64_t i) {
      constexpr int c = decltype(count)::value;
      const Pack<T, c> px = load_pack<c>(x + s * elements + i), pw = load_pack<c>(weight + i);
      Pack<T, c> py;
      for (int k = 0; k < c; ++k) store(py.at[k], load(px.at[k]) + load(pw.at[k]));
      store_pack(y + s * elements + i, py);
    });
}

template <class T, int kCount>
__global__ void position_embedding_backward_kernel(const T* dy, T* dw, std::int64_t sequences, std::int64_t elements,
                                                   bool accumulate) {
  for_elements<kCount>(elements, [=](auto count, std::int64_t i) {
    constexpr int c = decltype(count)::value;
    Pack<Math<T>, c> sum{};
    for (std::int64_t s = 0; s < sequences; ++s) {
      const Pack<T, c> p = load_pack<c>(dy + s * elements + i);
      for (int k = 0; k < c; ++k) sum.at[k] += load(p.at[k]);
    }
    Pack<T, c> to = accumulate ? load_pack<c>(dw + i) : Pack<T, c>{};
    for (int k = 0; k < c; ++k) put(to.at[k], sum.at[k], accumulate);
    store_pack(dw + i, to);
  });
}

inline void check_positions(const Call& call) {
  if (call.work.seq_len > call.shape.positions)
    call.fail("a sequence of " + std::to_string(call.work.seq_len) + " tokens is longer than its " +
              std::to_string(call.shape.positions) + " positions");
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
    launch({blocks_for(elements / c + 1), rows_of_grid(call.work.sequences)}, {kThreads}, 0,
           position_embedding_forward_kernel<T, c>, x, weight, y, call.work.sequences, elements);
  });
}

template <class T, class Launch>
void launch_position_embedding_backward(const Call& call, const Launch& launch) {
  check_positions(call);
  const std::int64_t width = call.shape.width, elements = call.work.seq_len * width,
                     all = extent(call.shape.positions, width);
  const T* dy = call.grad_output<T>(0, extent(call.tokens, width));
  T* dw = call.grad_param<T>(0, all);
  if (dw == nullptr) return;
  const bool accumulate = call.adds_to_param(0);
  const bool packs = (call.work.sequences == 1 || elements % kPack<T> == 0) && aligned_to_16(dy, dw);
  if (elements > 0)
    with_packs<kPack<T>>(packs, [&](auto count) {
      constexpr int c = decltype(count)::value;
      launch({blocks_for(elements / c + 1)}, {kThreads}, 0, position_embedding_backward_kernel<T, c>, dy, dw,
             call.work.sequences, elements, accumulate);
    });
  if (!accumulate) launch.zero(dw + elements, (all - elements) * static_cast<std::int64_t>(sizeof(T)));
}

template <class Launch>
void launch_embeddings(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    if (call.op.kind == OpKind::embedding)
      return backward ? launch_embedding_backward<T>(call, launch) : launch_embedding_forward<T>(call, launch);
    return backward ? launch_position_embedding_backward<T>(call, launch)
                    : launch_position_embedding_forward<T>(call, launch);
  });
}

}  // namespace fsdp::cuda
