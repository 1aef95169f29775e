// Does the memory of a trace add up?
#pragma once

#include <string_view>

#include "models/graph.h"

namespace fsdp {

// Sets the ids of the values that ops make. Throws InputError where an op names a value or a parameter that is not
// there, lets go of one that is not alive, or makes one twice.
void settle_trace(ModelGraph&, std::string_view where);

}  // namespace fsdp
