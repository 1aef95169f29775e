// FSDP1's layout: one flat vector per unit (docs/fsdp-order.md A2.8), which cuts through parameters.
//
//   UnitLayout l = unit_layouts(plan, model)[u];       // of a plan of the fsdp1 dialect: l.flat_elements > 0
//   FlatRange r = flat_range(l, l.params[0], rank);    // which elements of the parameter this rank holds, and where
//
// The unit's parameters lie one after another in named_parameters() order; ShardedParam::offset is a parameter's place
// in the whole vector. With use_orig_params every parameter begins at a multiple of 16 bytes of the compute dtype, and
// the vector ends at a multiple of the number of ranks; without it nothing is aligned and the vector has N elements.
// Rank r owns [r*c, (r+1)*c), c = ceil(elements / W), padded to c. One shard (NO_SHARD): every rank holds the whole
// vector, which is still padded to a multiple of the ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "models/graph.h"
#include "planner/layout.h"
#include "planner/plan.h"

namespace fsdp {

// Turns per-parameter layouts into flat ones: offsets, flat_elements, shard_elements, the scale of gradients.
// Throws InputError where sizes do not fit 64 bits.
void flatten_layouts(std::vector<UnitLayout>&, const ShardingPlan&, const ModelGraph&);

// Elements of a parameter within a rank's shard of the flat vector: [offset_in_shard, + elements) holds its elements
// [offset_in_param, + elements). None: elements is 0.
struct FlatRange {
  std::int64_t offset_in_shard = 0, elements = 0, offset_in_param = 0;
  friend bool operator==(const FlatRange&, const FlatRange&) = default;
};
[[nodiscard]] FlatRange flat_range(const UnitLayout&, const ShardedParam&, std::int64_t shard_rank);

// Elements of a rank's shard that the optimizer sees: with use_orig_params those of the parameters, else the padded
// shard.
[[nodiscard]] std::int64_t flat_local_elements(const UnitLayout&, std::int64_t shard_rank);

}  // namespace fsdp
