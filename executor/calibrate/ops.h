// What is benchmarked: kernels of the model (one op kind and direction at one size), and the rest of a step. For
// calibrate/ alone.
#pragma once

#include "executor/calibrate/timer.h"
#include "models/graph.h"
#include "planner/costs.h"

namespace fsdp {

enum class Part : std::uint8_t { forward, backward, backward_input, backward_weight };

struct OpCase {
  Op op;  // inputs, outputs and params have the right counts; their ids mean nothing
  Workload work;
  std::vector<std::int64_t> inputs, params;  // elements
  std::int64_t output = 0;
  std::int64_t second_output = 0;  // elements of a second one, which are ids; 0: none
  std::int64_t ids_below = 0;      // inputs[ids_at] are ids below this; 0: none
  std::size_t ids_at = 0;
};

// Shapes of the kernels that are timed: what a model of the size that such a machine trains has.
struct CaseShape {
  std::int64_t width = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
};

// A linear of n x n on `tokens` tokens (a square one: n); another kind on about `elements` values (attention: on a
// sequence of `elements`).
[[nodiscard]] OpCase linear_case(std::int64_t n, DType, std::int64_t tokens = 0);
[[nodiscard]] OpCase op_case(OpKind, std::int64_t elements, DType, const CaseShape&);
[[nodiscard]] Setup kernel_setup(const OpCase&, Part, DType);

// What is not a kernel of the model (setups.cpp), on n elements of a rank's own.
[[nodiscard]] Setup empty_setup();
[[nodiscard]] Setup copy_setup(std::int64_t n, DType);
// Adds values of `type` to fp32: the conversion that gradients and parameters go through.
[[nodiscard]] Setup cast_setup(std::int64_t n, DType);
[[nodiscard]] std::int64_t cast_bytes(std::int64_t n, DType);  // read + written
[[nodiscard]] Setup optimizer_setup(std::int64_t n, DType);    // AdamW
[[nodiscard]] Setup norm_setup(std::int64_t n, DType);         // in turns the sum of squares and the scaling
// A collective between two operations of another stream, as in a step: its own time and both hand-overs.
[[nodiscard]] Setup collective_setup(CollectiveKind, std::int64_t full_bytes, DType, std::int64_t ranks);

}  // namespace fsdp
