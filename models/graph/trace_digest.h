// The part of a model's digest that its trace is.
#pragma once

#include "models/graph/trace.h"
#include "models/input/digest.h"

namespace fsdp {

void add_trace(Digest&, const Trace&);  // nothing of an empty one

}  // namespace fsdp
