// What PyTorch did in one forward and backward of a model, as `fsdp_plan.export` wrote it down (docs/model-file.md):
// the ops of ModelGraph in detail. Sizes are those of any number of sequences of one length, in one element type.
//
// Values are storages. Those of the forward have ids in the order in which they appear, those of the backward ids of
// their own in the order of the backward, which runs the ops from the last to the first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/dtype.h"

namespace fsdp {

// What is there whatever the number of sequences, and what comes with each.
struct Scaled {
  std::int64_t fixed = 0, per_sequence = 0;
  [[nodiscard]] std::int64_t at(std::int64_t sequences) const;  // throws InputError where that overflows
  friend bool operator==(const Scaled&, const Scaled&) = default;
};

struct TracedValue {
  Scaled bytes;
  DType dtype = DType::f32;
  friend bool operator==(const TracedValue&, const TracedValue&) = default;
};

// C[m,n] = A[m,k] B[k,n], `count` times. An extent below zero is one of each sequence: -8192 is 8192 * sequences.
struct TracedProduct {
  std::int64_t m = 0, n = 0, k = 0, count = 1;
  friend bool operator==(const TracedProduct&, const TracedProduct&) = default;
};

struct TracedAttention {
  std::int64_t sequences = -1;  // as an extent of a product
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, queries = 0, keys = 0;
  bool causal = false, masked = false;  // masked: by a mask that is written out
  Scaled bytes;
  friend bool operator==(const TracedAttention&, const TracedAttention&) = default;
};

// bytes, launches: of all kernels that are neither; launches: of all.
struct TracedWork {
  Scaled bytes;
  std::int64_t launches = 0;
  std::vector<TracedProduct> products;
  std::optional<TracedAttention> attention;
  friend bool operator==(const TracedWork&, const TracedWork&) = default;
};

// One change of memory inside an op.
struct TracedEvent {
  enum class What : std::uint8_t {
    appears,    // a value that this op makes in this direction
    goes,       // one that it made, or that another made before: nothing holds it but autograd
    is_let_go,  // backward: a value of the forward that autograd kept for this op
  };
  What what = What::appears;
  bool is_own = true;      // index: among what the op makes in its direction; else among TracedOp's lists
  bool of_forward = true;  // backward: the value was made by a forward
  std::int32_t index = 0;
  std::int32_t ended = 0;  // goes, in forward: so many modules have returned since the op's last kernel, inner first
  friend bool operator==(const TracedEvent&, const TracedEvent&) = default;
};

struct TracedPass {
  std::vector<TracedValue> makes;
  std::vector<TracedEvent> events;
  TracedWork work;
  friend bool operator==(const TracedPass&, const TracedPass&) = default;
};

// Ops that are alike but for the module, the parameters and the values that they name.
struct TracedKind {
  std::int32_t reads = 0;  // the first of TracedOp::values are read
  // Events of the forward before the last thing that autograd keeps of the op; kNone: it keeps nothing.
  std::int32_t kept_until = -1;
  bool differentiable = false;  // autograd made a node for it, also where its backward does nothing
  Scaled saved;                 // bytes that autograd keeps for no op before it
  TracedPass forward;
  std::optional<TracedPass> backward;
  friend bool operator==(const TracedKind&, const TracedKind&) = default;
};

// By op of the graph.
struct TracedOp {
  std::int32_t kind = 0;
  std::vector<std::int32_t> gradients;                     // parameters whose gradient the backward makes
  std::vector<std::int32_t> values;                        // of the forward, made by other ops
  std::vector<std::int32_t> gradient_values;               // of the backward, made by ops behind
  std::int32_t first_value = 0, first_gradient_value = 0;  // ids of the first that it makes
  friend bool operator==(const TracedOp&, const TracedOp&) = default;
};

struct Trace {
  std::int64_t seq_len = 0;  // 0: there is no trace
  DType dtype = DType::bf16;
  std::vector<Scaled> batch;  // bytes of the tensors that a micro-batch brings
  std::vector<TracedKind> kinds;
  std::vector<TracedOp> ops;
  [[nodiscard]] bool empty() const { return seq_len == 0; }
  friend bool operator==(const Trace&, const Trace&) = default;
};

inline constexpr std::string_view kModelSchema = "fsdp-plan/model/1";

}  // namespace fsdp
