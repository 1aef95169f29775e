#include "executor/cuda/matmul_shape.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "executor/kernels/extents.h"

namespace fsdp::cuda {
namespace {

// Row-major storage of an operand that the matmul sees as `rows` x `columns`, read as column-major: the transpose of
// what is stored. The matmul in column-major terms wants the transpose of the operand; so what is stored as it is
// needs no transposition there either.
StoredMatrix stored(std::int64_t rows, std::int64_t columns, Transpose t) {
  if (t == Transpose::yes) std::swap(rows, columns);
  return {.rows = columns, .columns = rows, .ld = std::max<std::int64_t>(1, columns), .batch_stride = rows * columns};
}

template <class T>
LinearCalls linear_forward(DType type, const Call& call) {
  const std::int64_t in = call.shape.in, out = call.shape.out;
  MatmulCall p{.matmul = {.type = type,
                          .tb = call.shape.transposed ? Transpose::no : Transpose::yes,
                          .m = call.tokens,
                          .n = out,
                          .k = in,
                          .bias = call.params() > 1}};
  p.a = call.input<T>(0, extent(call.tokens, in));
  p.b = call.param<T>(0, extent(in, out));
  if (p.matmul.bias) p.bias = call.param<T>(1, out);
  p.c = call.output<T>(0, extent(call.tokens, out));
  return {{p}, {}};
}

template <class T>
LinearCalls linear_backward(DType type, const Call& call) {
  const std::int64_t in = call.shape.in, out = call.shape.out, tokens = call.tokens;
  const Transpose turned = call.shape.transposed ? Transpose::yes : Transpose::no;
  const T* dy = call.grad_output<T>(0, extent(tokens, out));
  LinearCalls calls;
  if (T* dx = call.grad_input<T>(0, extent(tokens, in)))
    calls.matmuls.push_back(
        {.matmul = {.type = type, .tb = turned, .m = tokens, .n = in, .k = out, .accumulate = call.adds_to_input(0)},
         .a = dy,
         .b = call.param<T>(0, extent(in, out)),
         .c = dx});
  if (T* dw = call.grad_param<T>(0, extent(in, out))) {
    const T* x = call.input<T>(0, extent(tokens, in));
    const Matmul p{.type = type,
                   .ta = Transpose::yes,
                   .m = call.shape.transposed ? in : out,
                   .n = call.shape.transposed ? out : in,
                   .k = tokens,
                   .accumulate = call.adds_to_param(0)};
    if (call.shape.transposed) calls.matmuls.push_back({.matmul = p, .a = x, .b = dy, .c = dw});
    else calls.matmuls.push_back({.matmul = p, .a = dy, .b = x, .c = dw});
  }
  if (call.params() < 2) return calls;
  if (T* db = call.grad_param<T>(1, out)) calls.sums.push_back({type, dy, tokens, out, db, call.adds_to_param(1)});
  return calls;
}

template <class T>
LinearCalls expert_linear_forward(DType type, const Call& call) {
  const ExpertSizes s(call);
  const std::int64_t in = call.shape.in, out = call.shape.out;
  return {{{.matmul = {.type = type, .tb = Transpose::yes, .m = s.capacity, .n = out, .k = in, .batch = s.experts},
            .a = call.input<T>(0, extent(s.slots, in)),
            .b = call.param<T>(0, extent(s.experts, out, in)),
            .c = call.output<T>(0, extent(s.slots, out))}},
          {}};
}

template <class T>
LinearCalls expert_linear_backward(DType type, const Call& call) {
  const ExpertSizes s(call);
  const std::int64_t in = call.shape.in, out = call.shape.out;
  const T* dy = call.grad_output<T>(0, extent(s.slots, out));
  LinearCalls calls;
  if (T* dx = call.grad_input<T>(0, extent(s.slots, in)))
    calls.matmuls.push_back({.matmul = {.type = type,
                                        .m = s.capacity,
                                        .n = in,
                                        .k = out,
                                        .batch = s.experts,
                                        .accumulate = call.adds_to_input(0)},
                             .a = dy,
                             .b = call.param<T>(0, extent(s.experts, out, in)),
                             .c = dx});
  if (T* dw = call.grad_param<T>(0, extent(s.experts, out, in)))
    calls.matmuls.push_back({.matmul = {.type = type,
                                        .ta = Transpose::yes,
                                        .m = out,
                                        .n = in,
                                        .k = s.capacity,
                                        .batch = s.experts,
                                        .accumulate = call.adds_to_param(0)},
                             .a = dy,
                             .b = call.input<T>(0, extent(s.slots, in)),
                             .c = dw});
  return calls;
}

}  // namespace

std::string text(const Matmul& p) {
  return std::string(name(p.type)) + " " + (p.batch > 1 ? std::to_string(p.batch) + " x " : "") + std::to_string(p.m) +
         " x " + std::to_string(p.n) + " x " + std::to_string(p.k);
}

ColumnMajorMatmul column_major(const Matmul& p) {
  return {.transpose_first = p.tb == Transpose::yes,
          .transpose_second = p.ta == Transpose::yes,
          .first = stored(p.k, p.n, p.tb),
          .second = stored(p.m, p.k, p.ta),
          .d = stored(p.m, p.n, Transpose::no),
          .batch = p.batch};
}

std::uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | 256u;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

MatmulKey key_of(const MatmulCall& call, int multiprocessors, bool tf32) {
  const Matmul& p = call.matmul;
  const bool fused = p.bias && alignment(call.bias) >= 16;
  const std::uint32_t c = fused ? std::min(alignment(call.c), alignment(call.bias)) : alignment(call.c);
  return {p, alignment(call.a), alignment(call.b), c, fused, multiprocessors, tf32 && p.type == DType::f32};
}

AlignedRoom aligned_room(void* workspace, std::int64_t bytes) {
  if (workspace == nullptr || bytes <= 256) return {};
  const auto beyond = reinterpret_cast<std::uintptr_t>(workspace) % 256;
  return {static_cast<std::byte*>(workspace) + (beyond == 0 ? 0 : 256 - beyond), bytes - 256};
}

LinearCalls linear_forward_calls(DType type, const Call& call) {
  return with_type(type, [&](auto element) { return linear_forward<decltype(element)>(type, call); });
}
LinearCalls linear_backward_calls(DType type, const Call& call) {
  return with_type(type, [&](auto element) { return linear_backward<decltype(element)>(type, call); });
}
LinearCalls expert_linear_forward_calls(DType type, const Call& call) {
  return with_type(type, [&](auto element) { return expert_linear_forward<decltype(element)>(type, call); });
}
LinearCalls expert_linear_backward_calls(DType type, const Call& call) {
  return with_type(type, [&](auto element) { return expert_linear_backward<decltype(element)>(type, call); });
}

}  // namespace fsdp::cuda
