// Softmax cross-entropy over the vocabulary. Kept for backward: log(sum(exp(logits))) of each token.
//
//   loss += weight * sum over tokens of (lse - logits[target]);   dlogits = weight * (exp(logits - lse) - [i ==
//                                                                 target])
#include <cmath>
#include <limits>
#include <string>

#include "executor/arithmetic/exp.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

template <class T>
Math<T> log_sum_exp(const T* x, std::int64_t n) {
  Math<T> most = -std::numeric_limits<Math<T>>::infinity();
#pragma omp simd reduction(max : most)
  for (std::int64_t i = 0; i < n; ++i) most = load(x[i]) > most ? load(x[i]) : most;
  Math<T> sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < n; ++i) sum += exp_of(load(x[i]) - most);
  return most + std::log(sum);
}

void check_targets(const Call& call, const std::int64_t* targets) {
  for (std::int64_t t = 0; t < call.tokens; ++t)
    if (targets[t] < 0 || targets[t] >= call.shape.vocab)
      call.fail("target " + std::to_string(targets[t]) + " at position " + std::to_string(t) +
                " is outside of the vocabulary of " + std::to_string(call.shape.vocab));
}

}  // namespace

template <class T>
void cross_entropy_forward(const Call& call) {
  const std::int64_t vocab = call.shape.vocab;
  const T* logits = call.input<T>(0, extent(call.tokens, vocab));
  const auto* targets = call.input<std::int64_t>(1, call.tokens);
  double* loss = call.output<double>(0, 1);
  Math<T>* kept = call.extra_to_keep<Math<T>>(call.tokens);
  check_targets(call, targets);
  double sum = 0;
  for (std::int64_t t = 0; t < call.tokens; ++t) {
    const Math<T> lse = log_sum_exp(logits + t * vocab, vocab);
    if (kept != nullptr) kept[t] = lse;
    sum += static_cast<double>(lse) - static_cast<double>(load(logits[t * vocab + targets[t]]));
  }
  *loss += call.token_weight * sum;
}

template <class T>
void cross_entropy_backward(const Call& call) {
  const std::int64_t vocab = call.shape.vocab;
  const T* logits = call.input<T>(0, extent(call.tokens, vocab));
  const auto* targets = call.input<std::int64_t>(1, call.tokens);
  const Math<T>* lse = call.extra<Math<T>>(call.tokens);
  T* dlogits = call.grad_input<T>(0, extent(call.tokens, vocab));
  if (dlogits == nullptr) return;
  check_targets(call, targets);
  const Math<T> weight = static_cast<Math<T>>(call.token_weight);
  const bool accumulate = call.adds_to_input(0);
  for (std::int64_t t = 0; t < call.tokens; ++t) {
    const T* x = logits + t * vocab;
    T* dx = dlogits + t * vocab;
    const std::int64_t target = targets[t];
    const Math<T> before = accumulate ? load(dx[target]) : Math<T>(0);
    for (std::int64_t i = 0; i < vocab; ++i) put(dx[i], weight * exp_of(load(x[i]) - lse[t]), accumulate);
    store(dx[target], before + weight * (exp_of(load(x[target]) - lse[t]) - Math<T>(1)));
  }
}

template void cross_entropy_forward<double>(const Call&);
template void cross_entropy_forward<float>(const Call&);
template void cross_entropy_forward<BFloat16>(const Call&);
template void cross_entropy_forward<Float16>(const Call&);
template void cross_entropy_backward<double>(const Call&);
template void cross_entropy_backward<float>(const Call&);
template void cross_entropy_backward<BFloat16>(const Call&);
template void cross_entropy_backward<Float16>(const Call&);

}  // namespace fsdp
