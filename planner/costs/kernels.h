// Time of the GPU or CPU kernels of one typed op, in one direction.
#pragma once

#include "models/graph.h"
#include "planner/costs.h"

namespace fsdp {

enum class Direction : std::uint8_t { forward, backward };

// Whether backward makes the gradient of the (first) input and of the (first) parameter; true if the op has none.
struct Gradients {
  bool input = true, weight = true;
  friend bool operator==(const Gradients&, const Gradients&) = default;
};
[[nodiscard]] Gradients needed_gradients(const Op&, const ModelGraph&);

// Demand of an op on `sequences` sequences, with the host's time to issue it and its flops. Recomputing is a forward.
[[nodiscard]] Demand kernel_demand(const Op&, Direction, std::int64_t sequences, const CostContext&);

}  // namespace fsdp
