// Spaces of plans for models without most of their equal blocks, from which the costs of a whole space are put
// together.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "planner/bound/fold.h"
#include "planner/search/design.h"

namespace fsdp {

// A space, and what one rank computes of its model.
struct LocalSpace {
  Space space;
  std::optional<ModelGraph> split;
  [[nodiscard]] const ModelGraph& graph() const { return split ? *split : *space.model; }
};
[[nodiscard]] LocalSpace local_space(const Space&, const Implementation&);

// The space of a folded model, which outlives it, with one way to wrap.
[[nodiscard]] LocalSpace folded_space(const Space&, const ModelGraph& folded, Grouping, const Implementation&);

// How many blocks each unit of blocks has; nullopt: units are made otherwise, not block by block.
[[nodiscard]] std::optional<std::size_t> blocks_together(const Grouping&);

}  // namespace fsdp
