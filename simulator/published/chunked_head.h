// A head and a loss that go over the vocabulary in chunks, so that no tensor holds all logits, and make them again in
// backward (prime-rl's FusedOutputLinear); since 9 March 2026 (pull request 1987) of chunks of tokens, one after the
// other. No plan can say that; a published run can have it.
//
//   chunk_head(model, {.vocabulary = 2048}, gpu);      // after units were chosen: the head is no linear layer any more
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "models/cluster.h"
#include "models/graph.h"

namespace fsdp {

struct HeadChunks {
  std::int64_t vocabulary = 8192;  // words in a chunk
  std::int64_t tokens = 0;         // of the micro-batch, whose logits are made together; 0: all
};
// "fused+chunked: vocabulary chunks of 2048 (...)", "fused+chunked: token chunks of 1024 (...)", which goes over 8192
// words at a time. Empty: the cell says no such thing.
[[nodiscard]] std::optional<HeadChunks> head_chunks(std::string_view loss_cell);

// Turns the op that makes the logits into an opaque one that makes a number per token, which is all that the loss
// reads. Its bytes are those of the eager kernels: per logit 58 in forward (written in bf16, cast, scaled, maximum,
// difference, exponential, sum, product, sum) and 64 in backward (written, cast, scaled, difference, exponential, two
// products, two casts, read twice), 61 each; and what the four products of the head would have moved in their time on
// `gpu`. In chunks of tokens each of these adds to the gradient of the whole weight, and each pair of chunks to that of
// its tokens: written, read twice and written again. Throws InputError("loss", ...) for a model whose last op but the
// loss is no linear layer.
void chunk_head(ModelGraph&, HeadChunks, const GpuSpec& gpu);

}  // namespace fsdp
