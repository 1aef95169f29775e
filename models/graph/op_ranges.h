// The ops of each module, as its ops say whose they are.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"

namespace fsdp {

// Sets op_begin and op_end of every module: from its first op to its last one, those of the modules in it included.
void set_op_ranges(ModelGraph&);

// Tensors that ops [begin, end) read and that ops before them have made, each once, in the order in which they are
// read: what a module of these ops is called with, but for the batch.
[[nodiscard]] std::vector<std::int32_t> inputs_from_before(const ModelGraph&, std::int32_t begin, std::int32_t end);

}  // namespace fsdp
