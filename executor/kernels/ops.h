// The kernels behind HostKernels::forward and backward: one pair per op kind, for the storage types double, float,
// BFloat16 and Float16.
#pragma once

#include "executor/kernels/call.h"

namespace fsdp {

template <class T>
void embedding_forward(const Call&);
template <class T>
void embedding_backward(const Call&);
template <class T>
void position_embedding_forward(const Call&);
template <class T>
void position_embedding_backward(const Call&);  // the gradient of x is the gradient of the output: an alias
template <class T>
void rms_norm_forward(const Call&);
template <class T>
void rms_norm_backward(const Call&);
template <class T>
void layer_norm_forward(const Call&);
template <class T>
void layer_norm_backward(const Call&);
template <class T>
void linear_forward(const Call&);
template <class T>
void linear_backward(const Call&);
template <class T>
void rotary_forward(const Call&);
template <class T>
void rotary_backward(const Call&);
template <class T>
void attention_forward(const Call&);
template <class T>
void attention_backward(const Call&);
template <class T>
void swiglu_forward(const Call&);
template <class T>
void swiglu_backward(const Call&);
template <class T>
void gelu_forward(const Call&);
template <class T>
void gelu_backward(const Call&);
template <class T>
void add_forward(const Call&);  // its gradients are aliases of the output's: no backward
template <class T>
void scale_forward(const Call&);
template <class T>
void scale_backward(const Call&);
template <class T>
void cross_entropy_forward(const Call&);
template <class T>
void cross_entropy_backward(const Call&);
template <class T>
void moe_route_forward(const Call&);
template <class T>
void moe_route_backward(const Call&);
template <class T>
void moe_dispatch_forward(const Call&);
template <class T>
void moe_dispatch_backward(const Call&);
template <class T>
void expert_linear_forward(const Call&);
template <class T>
void expert_linear_backward(const Call&);
template <class T>
void moe_combine_forward(const Call&);
template <class T>
void moe_combine_backward(const Call&);

}  // namespace fsdp
