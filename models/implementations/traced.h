// Forms of what PyTorch did when it ran a model (traced_implementation). For implementation.cpp alone.
#pragma once

#include "models/implementation.h"

namespace fsdp {

// With PYTORCH_ALLOC_CONF=expandable_segments:True.
[[nodiscard]] const Implementation& traced_expandable_implementation();

}  // namespace fsdp
