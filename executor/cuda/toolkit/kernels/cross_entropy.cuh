// Softmax cross-entropy over the vocabulary (executor/kernels/ops/cross_entropy.cpp); a block has a token. The gradient
// may be written where the logits are. Scratch of forward: the loss of each token, fp64, which one block then adds up
// in a fixed order.
#pragma once

#include <cmath>
#include <limits>

#include "executor/arithmetic/exp.h"
#include "executor/cuda/toolkit/kernels/launch.cuh"
#include "executor/cuda/toolkit/kernels/reduce.cuh"
#include "executor/kernels/call.h"
#include "models/input/error.h"

namespace fsdp::cuda {

// `kept`: log-sum-exp of each token, or null. `statistic`: of logits that are one part of the vocabulary, in place of
// `losses`; targets count from the part's first column, and `others` are in other parts.
template <class T, int kCount>
__global__ void cross_entropy_forward_kernel(const T* logits, const std::int64_t* targets, Math<T>* kept,
                                             double* losses, Math<T>* statistic, std::int64_t vocab,
                                             std::int64_t others) {
  using M = Math<T>;
  const std::int64_t token = blockIdx.x, target = targets[token];
  const T* x = logits + token * vocab;
  if (target < -others || target >= vocab + others) device_fail("a target is outside of the vocabulary");
  // In one pass: each thread's largest logit and its sum of exp(logit - largest), which a larger one scales down.
  constexpr M kNone = -std::numeric_limits<M>::infinity();
  M largest = kNone, of_thread = 0;
  for_row<kCount>(vocab, [&](std::int64_t i) {
    const Pack<T, kCount> p = load_pack<kCount>(x + i);
    M now = largest;
    for (int k = 0; k < kCount; ++k) now = load(p.at[k]) > now ? load(p.at[k]) : now;
    if (now > largest) of_thread *= exp_of(largest - now), largest = now;
    for (int k = 0; k < kCount; ++k) of_thread += load(p.at[k]) == kNone ? M(0) : exp_of(load(p.at[k]) - largest);
  });
  const M most = block_reduce<Largest>(largest, kNone);
  const M sum = block_sum(largest == most ? of_thread : of_thread * exp_of(largest - most));
  if (threadIdx.x != 0) return;
  const M lse = most + std::log(sum);
  if (kept != nullptr) kept[token] = lse;
  if (statistic != nullptr) statistic[token] = lse;
  else losses[token] = static_cast<double>(lse) - static_cast<double>(load(x[target]));
}

// One block: *loss += weight * (sum of the losses).
__global__ inline void add_losses_kernel(const double* losses, std::int64_t tokens, double weight, double* loss) {
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += blockDim.x) sum += losses[t];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss += weight * sum;
}

template <class T, int kCount>
__global__ void cross_entropy_backward_kernel(const T* logits, const std::int64_t* targets, const Math<T>* lse,
                                              T* dlogits, std::int64_t vocab, std::int64_t others, Math<T> weight,
                                              bool accumulate) {
  const std::int64_t token = blockIdx.x, target = targets[token];
  if (target < -others || target >= vocab + others) device_fail("a target is outside of the vocabulary");
  const Math<T> of_row = lse[token];
  for_row<kCount>(vocab, [&](std::int64_t i) {
    const Pack<T, kCount> p = load_pack<kCount>(logits + token * vocab + i);
    Pack<T, kCount> to = accumulate ? load_pack<kCount>(dlogits + token * vocab + i) : Pack<T, kCount>{};
    for (int k = 0; k < kCount; ++k)
      put(to.at[k], weight * (exp_of(load(p.at[k]) - of_row) - (i + k == target ? Math<T>(1) : Math<T>(0))),
          accumulate);
    store_pack(dlogits + token * vocab + i, to);
  });
}

template <class T, class Launch>
void launch_cross_entropy_forward(const Call& call, const Launch& launch) {
  const std::int64_t vocab = call.shape.vocab;
  const T* logits = call.input<T>(0, extent(call.tokens, vocab));
  const auto* targets = call.input<std::int64_t>(1, call.tokens);
  const bool part = call.shape.vocab_parts > 1;
  double* loss = part ? nullptr : call.output<double>(0, 1);
  Math<T>* kept = part ? call.extra<Math<T>>(call.tokens) : call.extra_to_keep<Math<T>>(call.tokens);
  double* losses = part ? nullptr : call.scratch<double>(call.tokens);
  Math<T>* statistic = part ? call.scratch<Math<T>>(call.tokens) : nullptr;
  if (call.tokens == 0) return;
  with_packs<kPack<T>>(vocab % kPack<T> == 0 && aligned_to_16(logits), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(call.tokens)}, {threads_for_row(vocab, 1024)}, 0, cross_entropy_forward_kernel<T, c>,
           logits, targets, kept, losses, statistic, vocab, extent(vocab, call.shape.vocab_parts - 1));
  });
  if (!part)
    launch({1}, {1024}, 0, add_losses_kernel, static_cast<const double*>(losses), call.tokens, call.token_weight, loss);
}

template <class T, class Launch>
void launch_cross_entropy_backward(const Call& call, const Launch& launch) {
  const std::int64_t vocab = call.shape.vocab;
  const T* logits = call.input<T>(0, extent(call.tokens, vocab));
  const auto* targets = call.input<std::int64_t>(1, call.tokens);
  const Math<T>* lse = call.extra<Math<T>>(call.tokens);
  T* dlogits = call.grad_input<T>(0, extent(call.tokens, vocab));
  if (dlogits == nullptr || call.tokens == 0) return;
  with_packs<kPack<T>>(vocab % kPack<T> == 0 && aligned_to_16(logits, dlogits), [&](auto count) {
    constexpr int c = decltype(count)::value;
    launch({static_cast<unsigned>(call.tokens)}, {threads_for_row(vocab, 1024)}, 0, cross_entropy_backward_kernel<T, c>,
           logits, targets, lse, dlogits, vocab, extent(vocab, call.shape.vocab_parts - 1),
           static_cast<Math<T>>(call.token_weight), call.adds_to_input(0));
  });
}

// What Action::loss_statistic does between the reductions over ranks that share a vocabulary, behind the first (without
// logits) and the second.
template <class T>
__global__ void loss_statistic_kernel(const T* logits, const std::int64_t* targets, Math<T>* kept, Math<T>* statistic,
                                      std::int64_t tokens, std::int64_t vocab) {
  for_elements<1>(tokens, [=](auto, std::int64_t t) {
    if (logits == nullptr) {
      const Math<T> most = statistic[t];
      statistic[t] = std::exp(kept[t] - most);
      kept[t] = most;
      return;
    }
    kept[t] += std::log(statistic[t]);
    const bool mine = targets[t] >= 0 && targets[t] < vocab;
    statistic[t] = mine ? load(logits[t * vocab + targets[t]]) : Math<T>(0);
  });
}

// Behind the third, by one block: *loss += weight * sum of (log-sum-exp - the target's logit).
template <class M>
__global__ void add_statistics_kernel(const M* kept, const M* statistic, std::int64_t tokens, double weight,
                                      double* loss) {
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += blockDim.x)
    sum += static_cast<double>(kept[t]) - static_cast<double>(statistic[t]);
  sum = block_sum(sum);
  if (threadIdx.x == 0) *loss += weight * sum;
}

template <class T>
T* statistic_arg(std::span<const KernelArg> args, std::size_t i, std::int64_t n) {
  if (args[i].view.data == nullptr) return nullptr;
  check_extent("loss_statistic", "argument", i, args[i].view, n, static_cast<std::int64_t>(sizeof(T)));
  return reinterpret_cast<T*>(args[i].view.data);
}

template <class T, class Launch>
void launch_loss_statistic(const Op& op, std::int64_t tokens, std::span<const KernelArg> args, double weight,
                           const Launch& launch) {
  using M = Math<T>;
  if (args.size() != 5) throw MachineError("operation loss_statistic: not 5 arguments");
  const std::int64_t vocab = op.shape.vocab;
  const T* logits = statistic_arg<T>(args, 0, extent(tokens, vocab));
  const auto* targets = statistic_arg<std::int64_t>(args, 1, tokens);
  M *kept = statistic_arg<M>(args, 2, tokens), *statistic = statistic_arg<M>(args, 3, tokens);
  auto* loss = statistic_arg<double>(args, 4, 1);
  if (kept == nullptr || statistic == nullptr || (logits != nullptr) != (targets != nullptr))
    throw MachineError("operation loss_statistic: an argument is absent that it needs");
  if (tokens == 0) return;
  if (loss != nullptr)
    return launch({1}, {1024}, 0, add_statistics_kernel<M>, static_cast<const M*>(kept),
                  static_cast<const M*>(statistic), tokens, weight, loss);
  launch({blocks_for(tokens)}, {kThreads}, 0, loss_statistic_kernel<T>, logits, targets, kept, statistic, tokens,
         vocab);
}

template <class Launch>
void launch_cross_entropy(const Call& call, DType type, bool backward, const Launch& launch) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    return backward ? launch_cross_entropy_backward<T>(call, launch) : launch_cross_entropy_forward<T>(call, launch);
  });
}

}  // namespace fsdp::cuda
