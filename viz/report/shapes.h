// The sizes that an operation works on, in words.
//
//   shape_text(op, picture)   // "8,192 x 4,096, weight 14,336 x 4,096 -> 8,192 x 14,336"
//                             // "8 ranks x 27,262,976 of bf16"
#pragma once

#include <string>

#include "viz/step_picture.h"

namespace fsdp {

// Of an op of the graph: its inputs, parameters and outputs in forward, rows being the tokens of one micro-batch.
// Backward works on the same. Of a collective: ranks, and elements of each. Of other work on a unit: its parameters.
// Empty: nothing is known.
[[nodiscard]] std::string shape_text(const Operation&, const StepPicture&);

}  // namespace fsdp
