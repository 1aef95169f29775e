// Data and beginnings on the device: the tokens and weights of executor/data/synthetic.h, the same values as on the
// host.
#pragma once

#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/data/synthetic.h"
#include "executor/kernels/call.h"

namespace fsdp::cuda {

__global__ inline void tokens_kernel(std::uint64_t seed, std::int64_t first, std::int64_t tokens, std::int64_t seq_len,
                                     std::int64_t vocab, std::int64_t* ids, std::int64_t* targets) {
  for_elements<1>(tokens, [=](auto, std::int64_t i) {
    ids[i] = hashed_token(seed, first + i / seq_len, i % seq_len, vocab);
    targets[i] = hashed_token(seed, first + i / seq_len, i % seq_len + 1, vocab);
  });
}

// Sequences `first` and the following.
template <class Launch>
void launch_synthetic_tokens(std::uint64_t seed, std::int64_t first, const Workload& work, std::int64_t vocab,
                             BufferView ids, BufferView targets, const Launch& launch) {
  if (vocab <= 0)
    throw MachineError("synthetic tokens need a vocabulary of at least one token, not " + std::to_string(vocab));
  check_extent("load_batch", "ids", 0, ids, work.tokens(), 8);
  check_extent("load_batch", "targets", 1, targets, work.tokens(), 8);
  if (work.tokens() == 0) return;
  launch({blocks_for(work.tokens())}, {kThreads}, 0, tokens_kernel, seed, first, work.tokens(), work.seq_len, vocab,
         reinterpret_cast<std::int64_t*>(ids.data), reinterpret_cast<std::int64_t*>(targets.data));
}

template <class T>
__global__ void hashed_weights_kernel(std::uint64_t key, std::int64_t begin, std::int64_t n, T* to) {
  for_elements<1>(n, [=](auto, std::int64_t i) { store(to[i], static_cast<Math<T>>(hashed_weight(key, begin + i))); });
}
template <class T>
__global__ void fill_kernel(Math<T> value, std::int64_t n, T* to) {
  for_elements<1>(n, [=](auto, std::int64_t i) { store(to[i], value); });
}

template <class Launch>
void launch_initial_values(const InitialValues& initial, std::int64_t begin, std::int64_t n, DType type, std::byte* to,
                           const Launch& launch) {
  if (n == 0) return;
  with_type(type, [&](auto element) {
    using T = decltype(element);
    auto* values = reinterpret_cast<T*>(to);
    if (initial.hashed) launch({blocks_for(n)}, {kThreads}, 0, hashed_weights_kernel<T>, initial.key, begin, n, values);
    else launch({blocks_for(n)}, {kThreads}, 0, fill_kernel<T>, static_cast<Math<T>>(initial.value), n, values);
  });
}

}  // namespace fsdp::cuda
