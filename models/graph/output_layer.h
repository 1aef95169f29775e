// The output layer of a model whose loss is computed a part at a time, the layer included (LoopPlan::chunk_head).
#pragma once

#include <cstdint>

#include "models/graph.h"

namespace fsdp {

// The op of the output layer: the last but one, a linear layer whose input nothing else reads, followed by the loss
// alone. kNone: the model ends otherwise.
[[nodiscard]] std::int32_t chunked_head(const ModelGraph&);

// The linear layer whose result becomes the logits, whatever scales, caps or adapts it on the way; kNone: none does.
[[nodiscard]] std::int32_t logits_op(const ModelGraph&);

// What one part of the output layer and the loss sees of a micro-batch: its share of the tokens, one after the other
// over all sequences.
[[nodiscard]] inline Workload part_of(const Workload& w, std::int64_t parts) {
  return {1, w.tokens() / parts, w.element_bytes, 1};
}
[[nodiscard]] inline Workload whole_of(const Workload& part, std::int64_t parts) {
  return {1, part.tokens() * parts, part.element_bytes, 1};
}

}  // namespace fsdp
