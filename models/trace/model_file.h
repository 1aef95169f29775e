// model.json, which `fsdp_plan.export` writes: docs/model-file.md has its fields.
#pragma once

#include <string_view>

#include "models/graph.h"
#include "models/input/json.h"

namespace fsdp {

// `seq_len`: 0, or the only one that the model was run with. Throws InputError.
[[nodiscard]] ModelGraph model_from_trace(JsonObject& document, std::string_view where, std::int64_t seq_len);

// Throws InputError for another length, element type or number of loss chunks than PyTorch ran; nothing for a graph
// without a trace.
void require_traced(const ModelGraph&, const Workload&);

}  // namespace fsdp
