// Trace::kinds as they stand in model.json.
#pragma once

#include <cstdint>

#include "models/graph.h"
#include "models/input/json.h"

namespace fsdp {

// What a kind says besides: of the op in the graph.
struct KindOfOp {
  OpKind kind{};
  OpShape shape;
};

[[nodiscard]] Scaled read_scaled(const JsonValue&);
[[nodiscard]] TracedKind read_kind(JsonObject&, KindOfOp&);
[[nodiscard]] DType read_traced_dtype(const JsonValue&);

// What a step computes of one sequence, forward and backward, in the convention of model_flops_per_token.
[[nodiscard]] double model_flops_per_sequence(const TracedKind&);

}  // namespace fsdp
