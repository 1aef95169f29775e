// The ops of each module, as its ops say whose they are.
#pragma once

#include "models/graph.h"

namespace fsdp {

// Sets op_begin and op_end of every module: from its first op to its last one, those of the modules in it included.
void set_op_ranges(ModelGraph&);

}  // namespace fsdp
