// A head and a loss that go over the vocabulary in chunks, so that no tensor holds all logits, and make them again in
// backward (prime-rl's FusedOutputLinear). No plan can say that; a published run can have it.
//
//   chunk_head(model, 2048, gpu);      // after units were chosen: the head is no linear layer any more
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/cluster.h"
#include "models/graph.h"

namespace fsdp {

// Tokens of the vocabulary in a chunk: "fused+chunked: vocabulary chunks of 2048 (...)". Empty: the cell says no such
// thing.
[[nodiscard]] std::optional<std::int64_t> vocabulary_chunk(std::string_view loss_cell);

// Turns the op that makes the logits into an opaque one that makes a number per token, which is all that the loss
// reads. Its bytes are those of the eager kernels: per logit 58 in forward (written in bf16, cast, scaled, maximum,
// difference, exponential, sum, product, sum) and 64 in backward (written, cast, scaled, difference, exponential, two
// products, two casts, read twice), 61 each; and what the four products of the head would have moved in their time on
// `gpu`. Throws InputError("loss", ...) for a model whose last op but the loss is no linear layer.
void chunk_head(ModelGraph&, std::int64_t tokens_of_vocabulary, const GpuSpec& gpu);

}  // namespace fsdp
