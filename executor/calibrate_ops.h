// Kernels of the model as benchmarks: one op kind and direction at one size. For calibrate*.cpp alone.
#pragma once

#include "executor/calibrate_timer.h"
#include "models/graph.h"

namespace fsdp {

enum class Part : std::uint8_t { forward, backward, backward_input, backward_weight };

struct OpCase {
  Op op;                                     // inputs, outputs and params have the right counts; their ids mean nothing
  Workload work;
  std::vector<std::int64_t> inputs, params;  // elements
  std::int64_t output = 0;
  std::int64_t ids_below = 0;                // inputs[ids_at] are ids below this; 0: none
  std::size_t ids_at = 0;
};

// A square linear of n x n on n tokens; another kind on about `elements` values (attention: on a sequence of `elements`).
[[nodiscard]] OpCase linear_case(std::int64_t n, DType);
[[nodiscard]] OpCase op_case(OpKind, std::int64_t elements, DType);
[[nodiscard]] Setup kernel_setup(const OpCase&, Part, DType);

}  // namespace fsdp
