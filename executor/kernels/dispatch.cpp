// Op kind and storage type -> kernel.
#include "executor/kernels.h"
#include "executor/kernels/ops.h"

namespace fsdp {
namespace {

template <class T>
void forward(const Call& call) {
  switch (call.op.kind) {
    case OpKind::embedding: return embedding_forward<T>(call);
    case OpKind::position_embedding: return position_embedding_forward<T>(call);
    case OpKind::rms_norm: return rms_norm_forward<T>(call);
    case OpKind::layer_norm: return layer_norm_forward<T>(call);
    case OpKind::linear: return linear_forward<T>(call);
    case OpKind::rotary: return rotary_forward<T>(call);
    case OpKind::attention: return attention_forward<T>(call);
    case OpKind::swiglu: return swiglu_forward<T>(call);
    case OpKind::gelu: return gelu_forward<T>(call);
    case OpKind::add: return add_forward<T>(call);
    case OpKind::cross_entropy: return cross_entropy_forward<T>(call);
    case OpKind::opaque: break;
  }
  call.fail("the host backend has no kernel for it");
}

template <class T>
void backward(const Call& call) {
  switch (call.op.kind) {
    case OpKind::embedding: return embedding_backward<T>(call);
    case OpKind::position_embedding: return position_embedding_backward<T>(call);
    case OpKind::rms_norm: return rms_norm_backward<T>(call);
    case OpKind::layer_norm: return layer_norm_backward<T>(call);
    case OpKind::linear: return linear_backward<T>(call);
    case OpKind::rotary: return rotary_backward<T>(call);
    case OpKind::attention: return attention_backward<T>(call);
    case OpKind::swiglu: return swiglu_backward<T>(call);
    case OpKind::gelu: return gelu_backward<T>(call);
    case OpKind::add: call.fail("its gradients are those of its output; lowering passes them on without a kernel");
    case OpKind::cross_entropy: return cross_entropy_backward<T>(call);
    case OpKind::opaque: break;
  }
  call.fail("the host backend has no kernel for it");
}

}  // namespace

void run_forward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args, double token_weight) {
  const Call call(op, work, args, token_weight, false);
  with_type(type, [&](auto element) { forward<decltype(element)>(call); });
}

void run_backward(const Op& op, const Workload& work, DType type, std::span<const KernelArg> args, double token_weight) {
  const Call call(op, work, args, token_weight, true);
  with_type(type, [&](auto element) { backward<decltype(element)>(call); });
}

}  // namespace fsdp
