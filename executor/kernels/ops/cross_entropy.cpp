// Softmax cross-entropy over the vocabulary. Kept for backward: log(sum(exp(logits))) of each token.
//
//   loss += weight * sum over tokens of (lse - logits[target]);   dlogits = weight * (exp(logits - lse) - [i ==
//                                                                 target])
//
// Of logits that are one part of the vocabulary, on one of the ranks that share it (Action::loss_statistic), forward
// keeps the log-sum-exp of the part, and lse is made between three reductions over the ranks: the largest of them, the
// sum of exp(own - largest), and the target's logit, which all ranks but one count as zero. Targets count from the
// part's first column.
#include <cmath>
#include <limits>
#include <string>

#include "executor/arithmetic/exp.h"
#include "executor/kernels/levels/host_kernels.h"
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
  const std::int64_t others = extent(call.shape.vocab, call.shape.vocab_parts - 1);
  for (std::int64_t t = 0; t < call.tokens; ++t)
    if (targets[t] < -others || targets[t] >= call.shape.vocab + others)
      call.fail("target " + std::to_string(targets[t]) + " at position " + std::to_string(t) +
                " is outside of the vocabulary of " + std::to_string(call.shape.vocab));
}

// Forward, where the logits are one part of the vocabulary: before the first reduction.
template <class T>
void part_forward(const Call& call) {
  const std::int64_t vocab = call.shape.vocab;
  const T* logits = call.input<T>(0, extent(call.tokens, vocab));
  check_targets(call, call.input<std::int64_t>(1, call.tokens));
  Math<T>*kept = call.extra<Math<T>>(call.tokens), *statistic = call.scratch<Math<T>>(call.tokens);
  for (std::int64_t t = 0; t < call.tokens; ++t) statistic[t] = kept[t] = log_sum_exp(logits + t * vocab, vocab);
}

template <class T>
T* optional_arg(std::span<const KernelArg> args, std::size_t i, std::int64_t n) {
  if (args[i].view.data == nullptr) return nullptr;
  check_extent("loss_statistic", "argument", i, args[i].view, n, static_cast<std::int64_t>(sizeof(T)));
  return reinterpret_cast<T*>(args[i].view.data);
}

// Behind the first, the second (which has logits) and the third reduction (which has the loss).
template <class T>
void statistic_of(const Op& op, std::int64_t tokens, std::span<const KernelArg> args, double weight) {
  if (args.size() != 5) throw MachineError("operation loss_statistic: not 5 arguments");
  const std::int64_t vocab = op.shape.vocab;
  const T* logits = optional_arg<T>(args, 0, extent(tokens, vocab));
  const auto* targets = optional_arg<std::int64_t>(args, 1, tokens);
  Math<T>*kept = optional_arg<Math<T>>(args, 2, tokens), *statistic = optional_arg<Math<T>>(args, 3, tokens);
  auto* loss = optional_arg<double>(args, 4, 1);
  if (kept == nullptr || statistic == nullptr || (logits != nullptr) != (targets != nullptr))
    throw MachineError("operation loss_statistic: an argument is absent that it needs");
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (loss != nullptr) {
      sum += static_cast<double>(kept[t]) - static_cast<double>(statistic[t]);
    } else if (logits != nullptr) {
      kept[t] += std::log(statistic[t]);
      const bool mine = targets[t] >= 0 && targets[t] < vocab;
      statistic[t] = mine ? load(logits[t * vocab + targets[t]]) : Math<T>(0);
    } else {
      const Math<T> most = statistic[t];
      statistic[t] = std::exp(kept[t] - most);
      kept[t] = most;
    }
  }
  if (loss != nullptr) *loss += weight * sum;
}

}  // namespace

void HostKernels::loss_statistic(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                                 double token_weight) const {
  with_type(type, [&](auto element) { statistic_of<decltype(element)>(op, work.tokens(), args, token_weight); });
}

template <class T>
void cross_entropy_forward(const Call& call) {
  if (call.shape.vocab_parts > 1) return part_forward<T>(call);
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
    const bool mine = target >= 0 && target < vocab;
    const Math<T> before = accumulate && mine ? load(dx[target]) : Math<T>(0);
    for (std::int64_t i = 0; i < vocab; ++i) put(dx[i], weight * exp_of(load(x[i]) - lse[t]), accumulate);
    if (mine) store(dx[target], before + weight * (exp_of(load(x[target]) - lse[t]) - Math<T>(1)));
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
