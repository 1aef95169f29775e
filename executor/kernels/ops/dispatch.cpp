// Op kind and storage type -> kernel.
#include <array>

#include "executor/kernels/levels/host_kernels.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

using Kernel = void (*)(const Call&);
struct Kernels {
  Kernel forward = nullptr, backward = nullptr;  // none: no kernel
};

// A row per op kind. The gradients of a sum are those of its output; lowering passes them on without a kernel.
template <class T>
constexpr std::array<Kernels, kOpKinds> table() {
  std::array<Kernels, kOpKinds> t;
  const auto row = [&t](OpKind kind, Kernel forward, Kernel backward) {
    t[static_cast<std::size_t>(kind)] = {forward, backward};
  };
  row(OpKind::embedding, embedding_forward<T>, embedding_backward<T>);
  row(OpKind::position_embedding, position_embedding_forward<T>, position_embedding_backward<T>);
  row(OpKind::rms_norm, rms_norm_forward<T>, rms_norm_backward<T>);
  row(OpKind::layer_norm, layer_norm_forward<T>, layer_norm_backward<T>);
  row(OpKind::linear, linear_forward<T>, linear_backward<T>);
  row(OpKind::rotary, rotary_forward<T>, rotary_backward<T>);
  row(OpKind::attention, attention_forward<T>, attention_backward<T>);
  row(OpKind::swiglu, swiglu_forward<T>, swiglu_backward<T>);
  row(OpKind::gelu, gelu_forward<T>, gelu_backward<T>);
  row(OpKind::add, add_forward<T>, nullptr);
  row(OpKind::scale, scale_forward<T>, scale_backward<T>);
  row(OpKind::cross_entropy, cross_entropy_forward<T>, cross_entropy_backward<T>);
  row(OpKind::moe_route, moe_route_forward<T>, moe_route_backward<T>);
  row(OpKind::moe_dispatch, moe_dispatch_forward<T>, moe_dispatch_backward<T>);
  row(OpKind::expert_linear, expert_linear_forward<T>, expert_linear_backward<T>);
  row(OpKind::moe_combine, moe_combine_forward<T>, moe_combine_backward<T>);
  return t;
}

void run(const Call& call, DType type, Kernel Kernels::*direction) {
  with_type(type, [&](auto element) {
    static constexpr auto kTable = table<decltype(element)>();
    const Kernel kernel = kTable[static_cast<std::size_t>(call.op.kind)].*direction;
    if (kernel == nullptr) call.fail("the host backend has no kernel for it");
    kernel(call);
  });
}

}  // namespace

void HostKernels::forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                          double token_weight) const {
  run(Call(op, work, args, token_weight, false), type, &Kernels::forward);
}

void HostKernels::backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args,
                           double token_weight) const {
  run(Call(op, work, args, token_weight, true), type, &Kernels::backward);
}

}  // namespace fsdp
