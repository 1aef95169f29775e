// y = x W^T + b, with W stored [out, in]; `transposed` (GPT-2's Conv1D): y = x W + b, with W stored [in, out].
// Backward: dx = dy W,  dW = dy^T x (transposed: x^T dy),  db = column sums of dy.
#include <algorithm>

#include "executor/arithmetic/column_sum.h"
#include "executor/kernels/matmul/matmul.h"
#include "executor/kernels/ops.h"

namespace fsdp {

template <class T>
void linear_forward(const Call& call) {
  const std::int64_t in = call.shape.in, out = call.shape.out;
  const T* x = call.input<T>(0, extent(call.tokens, in));
  const T* weight = call.param<T>(0, extent(in, out));
  const T* bias = call.params() > 1 ? call.param<T>(1, out) : nullptr;
  T* y = call.output<T>(0, extent(call.tokens, out));
  if (bias != nullptr)  // the matmul adds to it
    for (std::int64_t t = 0; t < call.tokens; ++t) std::copy_n(bias, out, y + t * out);
  multiply<T>(Transpose::no, call.shape.transposed ? Transpose::no : Transpose::yes, call.tokens, out, in, x, weight, y,
              bias != nullptr, call.scratch_view());
}

template <class T>
void linear_backward(const Call& call) {
  const std::int64_t in = call.shape.in, out = call.shape.out, tokens = call.tokens;
  const T* dy = call.grad_output<T>(0, extent(tokens, out));
  const Transpose flip = call.shape.transposed ? Transpose::yes : Transpose::no;
  if (T* dx = call.grad_input<T>(0, extent(tokens, in)))
    multiply<T>(Transpose::no, flip, tokens, in, out, dy, call.param<T>(0, extent(in, out)), dx, call.adds_to_input(0),
                call.scratch_view());
  if (T* dw = call.grad_param<T>(0, extent(in, out))) {
    const T* x = call.input<T>(0, extent(tokens, in));
    const bool add = call.adds_to_param(0);
    if (call.shape.transposed)
      multiply<T>(Transpose::yes, Transpose::no, in, out, tokens, x, dy, dw, add, call.scratch_view());
    else multiply<T>(Transpose::yes, Transpose::no, out, in, tokens, dy, x, dw, add, call.scratch_view());
  }
  if (call.params() < 2) return;
  if (T* db = call.grad_param<T>(1, out))
    column_sum(tokens, out, db, call.adds_to_param(1),
               [=](std::int64_t t, std::int64_t i) { return load(dy[t * out + i]); });
}

template void linear_forward<double>(const Call&);
template void linear_forward<float>(const Call&);
template void linear_forward<BFloat16>(const Call&);
template void linear_forward<Float16>(const Call&);
template void linear_backward<double>(const Call&);
template void linear_backward<float>(const Call&);
template void linear_backward<BFloat16>(const Call&);
template void linear_backward<Float16>(const Call&);

}  // namespace fsdp
