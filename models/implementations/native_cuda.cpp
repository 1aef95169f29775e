// Our kernels on GPUs (executor/cuda/toolkit/kernels/): what native saves, but other scratch and more launches. Storage
// in one type of `element_bytes`, arithmetic in double for double and in float otherwise. Device memory beside the
// arena: constants of the run (executor/cuda/toolkit/kernels/stream_kernels.h), none per operation.
#include "models/implementations/native_cuda.h"

#include "models/implementation.h"
#include "models/units.h"

namespace fsdp {
namespace {

std::int64_t accumulate_bytes(const Workload& w) { return w.element_bytes == 8 ? 8 : 4; }
std::int64_t times(std::int64_t a, std::int64_t b) { return checked_mul(a, b, kOpSize); }

// The facts of native with neither scratch nor counted launches: saved tensors and traffic are the same.
OpFacts as_native(const Op& op, const Workload& w) {
  OpFacts f = native_implementation().rules[static_cast<std::size_t>(op.kind)](op, w);
  f.forward_scratch_bytes = f.backward_scratch_bytes = 0;
  f.forward_launches = f.backward_launches = 1;
  return f;
}

// Backward: zeros the table's gradient, sorts the tokens by id (8 bytes each, twice), adds up their rows in pieces,
// finishes rows that lie in several pieces.
OpFacts embedding(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  const std::int64_t sums = times(2 * embedding_pieces(w.tokens()), op.shape.width);
  f.backward_scratch_bytes = checked_add(times(w.tokens(), 16), times(sums, accumulate_bytes(w)), kOpSize);
  f.backward_launches = static_cast<std::int16_t>(4 + embedding_merges(w.tokens()));
  return f;
}

// Backward: zeros the rows that no position used.
OpFacts position_embedding(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  f.backward_launches = 2;
  return f;
}

// Backward: the input's gradient; then of the weight, and of LayerNorm's bias, partial sums over rows and their sum.
// The scratch serves one of them after the other.
OpFacts norm(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  const std::int64_t rows = times(w.tokens(), op.shape.groups);
  f.backward_scratch_bytes = times(times(column_sum_parts(rows), op.shape.width), accumulate_bytes(w));
  f.backward_launches = static_cast<std::int16_t>(op.params.size() > 1 ? 5 : 3);
  return f;
}

// cuBLASLt. A bias is part of the forward matmul; its gradient takes a separate launch.
OpFacts matmul(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  f.forward_scratch_bytes = f.backward_scratch_bytes = kMatmulWorkspaceBytes;
  f.backward_launches = static_cast<std::int16_t>(op.params.size() > 1 ? 3 : 2);
  return f;
}

// Backward: rowsum(do o) of each row of scores, in the accumulate type; then the gradients of q, and of k and v.
OpFacts attention(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  f.backward_scratch_bytes = times(times(w.tokens(), op.shape.heads), accumulate_bytes(w));
  f.backward_launches = 3;
  return f;
}

// Forward: the loss of each token (fp64), then their sum; of a part of the vocabulary, a number of each token.
OpFacts cross_entropy(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  if (op.shape.vocab_parts > 1) return f;
  f.forward_scratch_bytes = times(w.tokens(), 8);
  f.forward_launches = 2;
  return f;
}

// Forward: choices, then slots.
OpFacts moe_route(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  f.forward_launches = 2;
  return f;
}

// Forward: zeros the slots first, most of which stay empty if the capacity is large.
OpFacts moe_dispatch(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  f.forward_launches = 2;
  return f;
}

// Backward: zeros the gradients of the slots first.
OpFacts moe_combine(const Op& op, const Workload& w) {
  OpFacts f = as_native(op, w);
  f.backward_launches = 2;
  return f;
}

}  // namespace

const Implementation& native_cuda_implementation() {
  static const Implementation cuda = [] {
    Implementation i = native_implementation();
    i.name = "native-cuda";
    i.persistent_products = false;
    const auto rule = [&i](OpKind kind, OpRule r) { i.rules[static_cast<std::size_t>(kind)] = r; };
    for (OpRule& r : i.rules)
      if (r != nullptr) r = as_native;
    rule(OpKind::embedding, embedding);
    rule(OpKind::position_embedding, position_embedding);
    rule(OpKind::rms_norm, norm);
    rule(OpKind::layer_norm, norm);
    rule(OpKind::linear, matmul);
    rule(OpKind::attention, attention);
    rule(OpKind::cross_entropy, cross_entropy);
    rule(OpKind::moe_route, moe_route);
    rule(OpKind::moe_dispatch, moe_dispatch);
    rule(OpKind::expert_linear, matmul);
    rule(OpKind::moe_combine, moe_combine);
    return i;
  }();
  return cuda;
}

}  // namespace fsdp
