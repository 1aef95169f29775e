// A model without most of its equal blocks: what a block costs and holds does not depend on how many like it there are.
//
//   const auto folded = fold(load_model("llama3-70b"));
//   folded->model                // the embedding, four blocks, the head
//   folded->stands_for           // {0, 1, 1, 1, ..., 1, 3}: of each block of the whole model, one of these
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "models/graph.h"

namespace fsdp {

struct Folded {
  ModelGraph model;
  std::vector<std::size_t> stands_for;  // blocks are counted as they run
};

// The first three blocks and the last stay. nullopt: the model has fewer than six, or they are not all alike (in ops,
// shapes and what they read of each other), or something besides the next block reads one of those between.
[[nodiscard]] std::optional<Folded> fold(const ModelGraph&);

// The same for units of so many blocks: the first two units and the last one stay, which may have fewer blocks.
[[nodiscard]] std::optional<Folded> fold_units(const ModelGraph&, std::size_t blocks_together);

}  // namespace fsdp
