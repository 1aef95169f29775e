#include "executor/cuda/attention_call.h"

#include <limits>

namespace fsdp::cuda {
namespace {

AttentionSizes sizes_of(const Call& call) {
  const OpShape& s = call.shape;
  const auto narrow = [&](std::int64_t x) {
    if (x < 0 || x > std::numeric_limits<std::int32_t>::max()) call.fail("an extent beyond 32 bits");
    return static_cast<std::int32_t>(x);
  };
  AttentionSizes z{.sequences = narrow(call.work.sequences),
                   .length = narrow(call.work.seq_len),
                   .heads = narrow(s.heads),
                   .kv_heads = narrow(s.kv_heads),
                   .dim = narrow(s.head_dim),
                   .window = narrow(s.window),
                   .causal = s.causal,
                   .alibi = s.alibi};
  const std::int64_t q = extent(s.heads, s.head_dim), kv = extent(s.kv_heads, s.head_dim);
  z.q_row = s.packed ? q + 2 * kv : q;
  z.kv_row = s.packed ? q + 2 * kv : kv;
  return z;
}

template <class T>
struct Operands {
  T *q, *k, *v;
};

// `get(i, elements)`: buffer i.
template <class T, class Get>
Operands<T> operands(const Call& call, const AttentionSizes& z, const Get& get) {
  if (!call.shape.packed)
    return {get(0, extent(call.tokens, z.q_row)), get(1, extent(call.tokens, z.kv_row)),
            get(2, extent(call.tokens, z.kv_row))};
  T* qkv = get(0, extent(call.tokens, z.q_row));
  if (qkv == nullptr) return {nullptr, nullptr, nullptr};
  return {qkv, qkv + extent(z.heads, z.dim), qkv + extent(z.heads, z.dim) + extent(z.kv_heads, z.dim)};
}

template <class T>
AttentionForward forward_arguments(const Call& call) {
  AttentionForward a{.sizes = sizes_of(call)};
  const auto in = operands<T>(call, a.sizes, [&](std::size_t i, std::int64_t n) { return call.input<T>(i, n); });
  a.q = in.q, a.k = in.k, a.v = in.v;
  a.out = call.output<T>(0, extent(call.tokens, a.sizes.out_row()));
  a.lse = call.extra_to_keep<Math<T>>(attention_rows(a.sizes));
  return a;
}

template <class T>
AttentionBackward backward_arguments(const Call& call) {
  AttentionBackward a{.sizes = sizes_of(call)};
  const std::int64_t n = extent(call.tokens, a.sizes.out_row());
  const auto in = operands<T>(call, a.sizes, [&](std::size_t i, std::int64_t e) { return call.input<T>(i, e); });
  const auto grad = operands<T>(call, a.sizes, [&](std::size_t i, std::int64_t e) { return call.grad_input<T>(i, e); });
  a.q = in.q, a.k = in.k, a.v = in.v;
  a.grad_out = call.grad_output<T>(0, n);
  a.out = call.output<T>(0, n);
  a.lse = call.extra<Math<T>>(attention_rows(a.sizes));
  a.sums = call.scratch<Math<T>>(attention_rows(a.sizes));
  a.grad_q = grad.q, a.grad_k = grad.k, a.grad_v = grad.v;
  const auto adds = [&](std::size_t i) { return call.adds_to_input(call.shape.packed ? 0 : i); };
  a.add_q = adds(0), a.add_k = adds(1), a.add_v = adds(2);
  return a;
}

}  // namespace

AttentionForward attention_forward_arguments(DType type, const Call& call) {
  return with_type(type, [&](auto element) { return forward_arguments<decltype(element)>(call); });
}

AttentionBackward attention_backward_arguments(DType type, const Call& call) {
  return with_type(type, [&](auto element) { return backward_arguments<decltype(element)>(call); });
}

}  // namespace fsdp::cuda
