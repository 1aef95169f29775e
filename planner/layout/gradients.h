// The places of the parts of a unit's sharded gradient in its buffer, with those of the parameters and of the
// optimizer's state.
#pragma once

#include <cstdint>

#include "planner/layout.h"
#include "planner/layout/flat.h"

namespace fsdp {

enum class GradientPlaces : std::uint8_t {
  as_shard,  // where the parameters have their shards, trained or not (fsdp1)
  trained,   // the padded shards of the trained parameters alone, in their order: what a reduce-scatter leaves
  dense,     // the same without padding (in host memory)
};

// This rank's part of one trained parameter: offsets in elements. The state is always dense.
struct TrainedPart {
  std::int64_t shard = 0, gradient = 0, state = 0, elements = 0;
};

template <class F>
void for_each_trained(const UnitLayout& layout, std::int64_t rank, GradientPlaces places, const F& f) {
  std::int64_t compact = 0, dense = 0;
  if (layout.flat_elements > 0 && !layout.trained()) return;
  if (layout.flat_elements > 0) {  // a flat parameter: with use_orig_params its parameters' parts, else all of it
    if (!layout.flat_aligned) return f(TrainedPart{0, 0, 0, layout.shard_elements});
    for (const ShardedParam& p : layout.params) {
      const FlatRange r = flat_range(layout, p, rank);
      if (r.elements > 0) f(TrainedPart{r.offset_in_shard, r.offset_in_shard, dense, r.elements});
      dense += r.elements;
    }
    return;
  }
  for (const ShardedParam& p : layout.params) {
    if (!p.trainable) continue;
    const std::int64_t n = p.local_elements(rank);
    const std::int64_t gradient = places == GradientPlaces::as_shard  ? p.offset
                                  : places == GradientPlaces::trained ? compact
                                                                      : dense;
    if (n > 0) f(TrainedPart{p.offset, gradient, dense, n});
    compact += p.padded_shard();
    dense += n;
  }
}

[[nodiscard]] inline std::int64_t gradient_elements(const UnitLayout& layout, std::int64_t rank,
                                                    GradientPlaces places) {
  if (places == GradientPlaces::as_shard) return layout.shard_elements;
  return places == GradientPlaces::trained ? layout.reduce_elements : layout.local_trained_elements(rank);
}

}  // namespace fsdp
