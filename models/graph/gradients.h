// Which gradients the backward of an op makes: those of frozen parameters, and of what no trained one contributes to,
// are not needed.
#pragma once

#include "models/graph.h"

namespace fsdp {

struct Gradients {
  bool input = true, weight = true;  // of its first input and of its first parameter; true for ops without
  friend bool operator==(const Gradients&, const Gradients&) = default;
};
[[nodiscard]] Gradients needed_gradients(const Op&, const ModelGraph&);

}  // namespace fsdp
