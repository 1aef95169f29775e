// Token and position embeddings.
#include <algorithm>
#include <numeric>
#include <string>

#include "executor/arithmetic/column_sum.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

// A rank that has one part of the vocabulary counts from its first row: ids outside of [0, vocab) are other ranks'.
void check_ids(const Call& call, const std::int64_t* ids) {
  const std::int64_t others = extent(call.shape.vocab, call.shape.vocab_parts - 1);
  for (std::int64_t t = 0; t < call.tokens; ++t)
    if (ids[t] < -others || ids[t] >= call.shape.vocab + others)
      call.fail("token " + std::to_string(ids[t]) + " at position " + std::to_string(t) +
                " is outside of the vocabulary of " + std::to_string(call.shape.vocab));
}

void check_positions(const Call& call) {
  if (call.work.seq_len > call.shape.positions)
    call.fail("a sequence of " + std::to_string(call.work.seq_len) + " tokens is longer than its " +
              std::to_string(call.shape.positions) + " positions");
}

}  // namespace

template <class T>
void embedding_forward(const Call& call) {
  const std::int64_t width = call.shape.width;
  const auto* ids = call.input<std::int64_t>(0, call.tokens);
  const T* weight = call.param<T>(0, extent(call.shape.vocab, width));
  T* y = call.output<T>(0, extent(call.tokens, width));
  check_ids(call, ids);
  for (std::int64_t t = 0; t < call.tokens; ++t) {
    if (ids[t] >= 0 && ids[t] < call.shape.vocab) std::copy_n(weight + ids[t] * width, width, y + t * width);
    else std::fill_n(y + t * width, width, T{});
  }
}

// The gradient of a row is the sum over the tokens that looked it up, in token order and in the arithmetic type: tokens
// are sorted by (id, position) in scratch ([tokens] of int64), so that each row is written once. Of a split vocabulary
// it is the gradient of all rows, this rank's first and then those of the ranks after it, around to the one before it.
template <class T>
void embedding_backward(const Call& call) {
  const std::int64_t width = call.shape.width;
  const auto* ids = call.input<std::int64_t>(0, call.tokens);
  const T* dy = call.grad_output<T>(0, extent(call.tokens, width));
  auto* order = call.scratch<std::int64_t>(call.tokens);
  const std::int64_t rows = extent(call.shape.vocab, call.shape.vocab_parts);
  T* dw = call.grad_param<T>(0, extent(rows, width));
  if (dw == nullptr) return;
  check_ids(call, ids);
  const bool accumulate = call.adds_to_param(0);
  if (!accumulate) std::fill_n(dw, rows * width, T{});
  std::iota(order, order + call.tokens, std::int64_t{0});
  std::sort(order, order + call.tokens,
            [ids](std::int64_t a, std::int64_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  for (std::int64_t begin = 0, end = 0; begin < call.tokens; begin = end) {
    const std::int64_t id = ids[order[begin]];
    while (end < call.tokens && ids[order[end]] == id) ++end;
    column_sum(end - begin, width, dw + (id < 0 ? id + rows : id) * width, accumulate,
               [=](std::int64_t r, std::int64_t c) { return load(dy[order[begin + r] * width + c]); });
  }
}

template <class T>
void position_embedding_forward(const Call& call) {
  const std::int64_t width = call.shape.width;
  check_positions(call);
  const T* x = call.input<T>(0, extent(call.tokens, width));
  const T* weight = call.param<T>(0, extent(call.shape.positions, width));
  T* y = call.output<T>(0, extent(call.tokens, width));
  const std::int64_t sequence = call.work.seq_len * width;  // elements; the same part of `weight` for each sequence
  for (std::int64_t s = 0; s < call.work.sequences; ++s)
    for (std::int64_t i = 0; i < sequence; ++i) store(y[s * sequence + i], load(x[s * sequence + i]) + load(weight[i]));
}

template <class T>
void position_embedding_backward(const Call& call) {
  const std::int64_t width = call.shape.width;
  check_positions(call);
  const T* dy = call.grad_output<T>(0, extent(call.tokens, width));
  T* dw = call.grad_param<T>(0, extent(call.shape.positions, width));
  if (dw == nullptr) return;
  const std::int64_t sequence = call.work.seq_len * width;
  const bool accumulate = call.adds_to_param(0);
  column_sum(call.work.sequences, sequence, dw, accumulate,
             [=](std::int64_t s, std::int64_t i) { return load(dy[s * sequence + i]); });
  if (!accumulate) std::fill_n(dw + sequence, call.shape.positions * width - sequence, T{});
}

template void embedding_forward<double>(const Call&);
template void embedding_forward<float>(const Call&);
template void embedding_forward<BFloat16>(const Call&);
template void embedding_forward<Float16>(const Call&);
template void embedding_backward<double>(const Call&);
template void embedding_backward<float>(const Call&);
template void embedding_backward<BFloat16>(const Call&);
template void embedding_backward<Float16>(const Call&);
template void position_embedding_forward<double>(const Call&);
template void position_embedding_forward<float>(const Call&);
template void position_embedding_forward<BFloat16>(const Call&);
template void position_embedding_forward<Float16>(const Call&);
template void position_embedding_backward<double>(const Call&);
template void position_embedding_backward<float>(const Call&);
template void position_embedding_backward<BFloat16>(const Call&);
template void position_embedding_backward<Float16>(const Call&);

}  // namespace fsdp
