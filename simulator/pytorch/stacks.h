// What an allocation was for, from the stack of calls that PyTorch's allocator recorded with it. For snapshot.cpp
// alone.
#pragma once

#include <string>

#include "models/input/pickle.h"
#include "simulator/pytorch/snapshot.h"

namespace fsdp {

struct StackMeaning {
  bool recorded = false;   // the stack is not empty
  bool workspace = false;  // of a library: predictions count it as fixed, not as allocated
  RecordedPart part = RecordedPart::other;
};

// `frames`: a list of {"filename", "name", "line"}, the innermost call first.
[[nodiscard]] StackMeaning meaning_of(const PickleValue& frames);

// The innermost call outside of PyTorch and of this program's package, "forward (train.py:33)"; empty if there is none.
// Characters that would steer a terminal are replaced.
[[nodiscard]] std::string place_of(const PickleValue& frames);

}  // namespace fsdp
